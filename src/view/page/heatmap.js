// Heat maps on canvases: a diverging palette around zero, hidden pairs hatched, NaN and infinities marked.

const PALETTE_STEPS = 256; // on each side of zero

// Ends and middle of the palette in OKLab's lightness, chroma and hue: equal steps of a value look equally large.
const PALETTES = {
  light: { middle: [0.975, 0.003, 90], low: [0.42, 0.13, 255], high: [0.46, 0.16, 40] },
  dark: { middle: [0.27, 0.006, 260], low: [0.82, 0.12, 235], high: [0.82, 0.14, 65] },
};

function oklchToRgb([lightness, chroma, hue]) {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return linear.map((x) => {
    const y = Math.min(1, Math.max(0, x));
    return Math.round(255 * (y <= 0.0031308 ? 12.92 * y : 1.055 * y ** (1 / 2.4) - 0.055));
  });
}

const paletteCache = {};

// 2 * PALETTE_STEPS + 1 colours, from the most negative to the most positive value.
function palette(theme) {
  if (!paletteCache[theme]) {
    const { middle, low, high } = PALETTES[theme];
    paletteCache[theme] = Array.from({ length: 2 * PALETTE_STEPS + 1 }, (_, n) => {
      const x = (n - PALETTE_STEPS) / PALETTE_STEPS;
      const end = x < 0 ? low : high;
      const share = Math.abs(x) ** 0.9;
      return oklchToRgb([
        middle[0] + (end[0] - middle[0]) * share,
        middle[1] + (end[1] - middle[1]) * share,
        end[2],
      ]);
    });
  }
  return paletteCache[theme];
}

function currentTheme() {
  return document.documentElement.dataset.theme;
}

const DECADES = 6; // of the logarithmic scale: what is smaller has the colour of zero

// share(x): the share of the palette for a magnitude, itself as a share of the largest; value: the inverse of it.
const COLOUR_SCALES = {
  linear: { share: (x) => x, value: (share) => share },
  root: { share: Math.sqrt, value: (share) => share * share },
  log: {
    share: (x) => Math.max(0, 1 + Math.log10(x) / DECADES),
    value: (share) => 10 ** (DECADES * (share - 1)),
  },
};

function colorOf(value, largest, colors) {
  const share = largest > 0 ? COLOUR_SCALES[state.colours].share(Math.min(1, Math.abs(value) / largest)) : 0;
  return colors[Math.round(Math.sign(value) * share * PALETTE_STEPS) + PALETTE_STEPS];
}

const NOT_A_NUMBER = { light: [203, 36, 174], dark: [255, 120, 230] };
const HATCH_GROUND = { light: [238, 240, 242], dark: [28, 32, 38] };

// The largest magnitude of the finite numbers.
function largestOf(values) {
  return values.reduce((a, b) => (Number.isFinite(b) ? Math.max(a, Math.abs(b)) : a), 0);
}

const scales = new Map();
const QUANTILE = 0.98;
const MAX_SHARE_OF_QUANTILE = 4; // an end of the scale further than this beyond the quantile would blank the map
const MIN_MASKING = 1000; // numbers that are meant as minus infinity are of this magnitude or more,
const MASKING_GAP = 32; // and this many times larger than all others
const MAX_SAMPLES = 16384;

// The magnitude at the end of a variable's scale, of the numbers that are shown: the largest one, or a quantile if a
// few are far larger.
function scaleOf(variable) {
  const { id } = variable.stored;
  if (!scales.has(id)) scales.set(id, chooseScale(variable.values, hiddenIn(variable), variable.columns));
  return scales.get(id);
}

function chooseScale(values, hidden, columns) {
  const isSeen = (n) => !hidden || !hidden(Math.floor(n / columns), n % columns);
  const seen = values.map((x, n) => (Number.isFinite(x) && isSeen(n) ? x : 0));
  const every = Math.ceil(seen.length / MAX_SAMPLES);
  const samples = seen.filter((x, n) => x !== 0 && n % every === 0);
  const end = maskingFrom(samples);
  const usual = seen.map((x) => (x > -end ? Math.abs(x) : 0));
  const largest = largestOf(usual) || largestOf(values);
  const sizes = samples.filter((x) => x > -end).map(Math.abs).sort();
  const quantile = sizes[Math.ceil(QUANTILE * (sizes.length - 1))] || largest;
  return largest > MAX_SHARE_OF_QUANTILE * quantile ? quantile : largest;
}

// The magnitude from which on negative numbers mask, as -65504 or -1e9 in a bias does: they are far larger than all
// others. Infinity if there are none.
function maskingFrom(samples) {
  const positive = samples.reduce((a, b) => Math.max(a, b), 0);
  const negative = samples.filter((x) => x < 0).map(Math.abs).sort();
  let from = Infinity;
  for (let n = negative.length - 1; n >= 0 && negative[n] >= MIN_MASKING; n--) {
    const next = Math.max(positive, n > 0 ? negative[n - 1] : 0);
    if (next > 0 && negative[n] > MASKING_GAP * next) from = negative[n];
  }
  return from;
}

// The cells beyond the end of the scale.
function countBeyond(variable) {
  const end = scaleOf(variable);
  const hidden = hiddenIn(variable);
  const isSeen = (n) => !hidden || !hidden(Math.floor(n / variable.columns), n % variable.columns);
  return variable.values.reduce((sum, x, n) => sum + (Number.isFinite(x) && Math.abs(x) > end && isSeen(n)), 0);
}

function luminance([r, g, b]) {
  const linear = [r, g, b].map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}

function inkOn(color) {
  return luminance(color) > 0.179 ? "#000000" : "#ffffff"; // from here on black has more contrast than white
}

const pictures = new Map();

// The picture of a grid whose numbers never change (id: those of an array of the page) is drawn once.
function pictureOf(grid, theme) {
  if (!grid.id) return pixelsOf(grid, theme);
  const key = `${grid.id} ${theme} ${state.colours}`;
  if (!pictures.has(key)) pictures.set(key, pixelsOf(grid, theme));
  return pictures.get(key);
}

// A picture with one pixel per cell.
function pixelsOf(grid, theme) {
  const colors = palette(theme);
  const image = new ImageData(grid.columns, grid.rows);
  const { data } = image;
  for (let n = 0; n < grid.rows * grid.columns; n++) {
    const value = grid.values[n];
    const isHidden = grid.hidden && grid.hidden(Math.floor(n / grid.columns), n % grid.columns);
    const ofValue = Number.isFinite(value) ? colorOf(value, grid.largest, colors) : NOT_A_NUMBER[theme];
    const color = isHidden ? HATCH_GROUND[theme] : ofValue;
    data[4 * n] = color[0];
    data[4 * n + 1] = color[1];
    data[4 * n + 2] = color[2];
    data[4 * n + 3] = 255;
  }
  const canvas = document.createElement("canvas");
  canvas.width = grid.columns;
  canvas.height = grid.rows;
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

// Runs of hidden cells: [row, first column, last column + 1].
function hiddenRuns(grid) {
  const runs = [];
  for (let row = 0; row < grid.rows; row++) {
    let start = -1;
    for (let column = 0; column <= grid.columns; column++) {
      const isOne = column < grid.columns && grid.hidden(row, column);
      if (isOne && start < 0) start = column;
      if (!isOne && start >= 0) {
        runs.push([row, start, column]);
        start = -1;
      }
    }
  }
  return runs;
}

function hatch(context, theme) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const pen = tile.getContext("2d");
  pen.fillStyle = `rgb(${HATCH_GROUND[theme].join(",")})`;
  pen.fillRect(0, 0, 8, 8);
  pen.strokeStyle = theme === "dark" ? "#4a525e" : "#b9c0c9";
  pen.lineWidth = 1.2;
  pen.beginPath();
  for (const offset of [-8, 0, 8]) {
    pen.moveTo(offset, 8);
    pen.lineTo(offset + 8, 0);
  }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}

// grid: {id, rows, columns, values, largest, hidden(row, column)}, id if it is an array of the page; size: {width,
// height} of a cell in CSS pixels.
function drawMap(canvas, grid, size, marks = {}) {
  const theme = currentTheme();
  const ratio = Math.max(1, window.devicePixelRatio || 1);
  const width = grid.columns * size.width;
  const height = grid.rows * size.height;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.imageSmoothingEnabled = false;
  context.drawImage(pictureOf(grid, theme), 0, 0, width, height);
  drawHidden(context, grid, size, theme);
  drawGaps(context, grid, size);
  if (marks.numbers) drawNumbers(context, grid, size, theme);
  for (const cell of marks.inputs || []) outline(context, grid, size, cell, "inputs");
  for (const cell of marks.outputs || []) outline(context, grid, size, cell, "outputs");
  if (marks.chosen) outline(context, grid, size, marks.chosen, "chosen");
}

function drawHidden(context, grid, size, theme) {
  const runs = grid.hidden ? hiddenRuns(grid) : [];
  if (runs.length === 0) return;
  const ratio = context.getTransform().a;
  const snap = (x) => Math.round(x * ratio) / ratio; // to the pixels at which the picture's cells begin
  context.fillStyle = hatch(context, theme);
  context.beginPath();
  for (const [row, from, to] of runs) {
    const [left, right] = [from, to].map((n) => snap(n * size.width));
    const [top, bottom] = [row, row + 1].map((n) => snap(n * size.height));
    context.rect(left, top, right - left, bottom - top);
  }
  context.fill();
}

// Thin lines between cells that are large enough to be seen one by one.
function drawGaps(context, grid, size) {
  if (size.width < 8 || size.height < 8) return;
  context.fillStyle = cssColor("--surface");
  for (let column = 1; column < grid.columns; column++) {
    context.fillRect(column * size.width - 0.5, 0, 1, grid.rows * size.height);
  }
  for (let row = 1; row < grid.rows; row++) {
    context.fillRect(0, row * size.height - 0.5, grid.columns * size.width, 1);
  }
}

function drawNumbers(context, grid, size, theme) {
  const colors = palette(theme);
  context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let row = 0; row < grid.rows; row++) {
    for (let column = 0; column < grid.columns; column++) {
      const value = grid.values[row * grid.columns + column];
      if (grid.hidden && grid.hidden(row, column)) continue;
      const color = Number.isFinite(value) ? colorOf(value, grid.largest, colors) : NOT_A_NUMBER[theme];
      context.fillStyle = inkOn(color);
      context.fillText(formatNumber(value, 3), (column + 0.5) * size.width, (row + 0.5) * size.height);
    }
  }
}

const cssColors = new Map();

// A colour of page.css in the current theme.
function cssColor(name) {
  const key = `${name} ${currentTheme()}`;
  if (!cssColors.has(key)) {
    cssColors.set(key, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  }
  return cssColors.get(key);
}

// A frame around a cell, a row or a column: {row, column}, null for a whole axis.
function outline(context, grid, size, cell, kind) {
  const x = cell.column === null ? 0 : cell.column * size.width;
  const y = cell.row === null ? 0 : cell.row * size.height;
  const width = cell.column === null ? grid.columns * size.width : size.width;
  const height = cell.row === null ? grid.rows * size.height : size.height;
  const line = kind === "chosen" ? 3 : 2;
  const frame = (color, inset, thickness) => {
    context.strokeStyle = color;
    context.lineWidth = thickness;
    context.strokeRect(x + inset, y + inset, Math.max(1, width - 2 * inset), Math.max(1, height - 2 * inset));
  };
  frame(cssColor("--surface"), line / 2 + 1, line + 2);
  context.setLineDash(kind === "outputs" ? [4, 2] : []);
  frame(cssColor(`--${kind}`), line / 2, line);
  context.setLineDash([]);
}

// Whether a cell of a variable belongs to a hidden pair; null if none does.
function hiddenIn(variable) {
  if (!variable.stats.hidden) return null;
  const hidden = hiddenFlags(variable);
  return (row, column) => hidden[row * variable.columns + column] === 1;
}

// The cells of a variable as drawMap wants them.
function gridOf(variable) {
  return {
    id: variable.stored.id,
    rows: variable.rows,
    columns: variable.columns,
    values: variable.values,
    largest: scaleOf(variable),
    hidden: hiddenIn(variable),
  };
}

// A cell's size such that the map fits into a box. A map with as many rows as columns is square, unless only wider cells
// have room for their numbers.
function cellSize(grid, box) {
  const most = { width: box.width / Math.max(1, grid.columns), height: box.height / Math.max(1, grid.rows) };
  const side = Math.min(box.cell, most.width, most.height);
  const square = { width: side, height: side };
  const wide = {
    width: Math.min(box.cell, most.width),
    height: Math.min(box.cellHeight || box.cell, most.height),
  };
  return grid.rows === grid.columns && (hasNumbers(square) || !hasNumbers(wide)) ? square : wide;
}

// Whether a cell of this size has room for its number.
function hasNumbers({ width, height }) {
  return width >= 44 && height >= 18;
}
