// The slider: the inputs move along the tangent, x + e tx. The true change of a cell beside e times its tangent.

// The variable whose tangent is the chosen one, or the chosen one itself, if the page has its values along the tangent.
function alongVariable() {
  const isTangent = ["jvp", "vjp_jvp"].includes(laneOf(state.name));
  const name = !isTangent ? state.name : state.name === "mu" ? "L" : state.name.replace(/^t/, "");
  const variable = variables.get(name);
  return variable && variable.record.along ? variable : null;
}

function tangentName(name) {
  return name === "L" ? "mu" : `t${name}`;
}

// The part of a variable that is known along the tangent.
function partAlong(variable) {
  const { queries, keys } = variable.head.along;
  const ranges = { i: queries, j: keys };
  const [rows, columns] = [0, 1].map((n) => ranges[variable.axes[n]] || [0, variable.record.shape[n]]);
  return { row0: rows[0], column0: columns[0], rows: rows[1] - rows[0], columns: columns[1] - columns[0] };
}

// "queries 0 to 63, keys 0 to 63"
function partWords({ queries, keys }) {
  return `queries ${queries[0]} to ${queries[1] - 1}, keys ${keys[0]} to ${keys[1] - 1}`;
}

// Whether the map that is chosen shows how the chosen variable moves.
function movesAlong() {
  const lane = laneOf(state.name).startsWith("vjp") ? "vjp_jvp" : "jvp";
  return Boolean(PAGE.steps) && lanesShown().includes(lane);
}

function renderAlong() {
  const variable = movesAlong() ? alongVariable() : null;
  const isMoved = variable && variable.level !== "pooled";
  const html = isMoved ? sliderHtml(variable) : movesAlong() ? `<p>${whyNot(variable)}</p>` : "";
  document.getElementById("along").innerHTML = html && `<h3>Along the tangent</h3>${html}`;
  document.getElementById("changes").innerHTML = isMoved ? changesHtml(variable) : "";
}

function whyNot(variable) {
  const { along } = currentHead();
  if (variable) {
    return `Single numbers move, not blocks:
<button type="button" class="name-link" data-level="window">${partWords(along)}</button>.`;
  }
  const { formula } = table[state.name];
  const moves = variables.has(tangentName(state.name)) || laneOf(state.name) === "jvp";
  if (!formula) return moves ? "An input moves by exactly <i>e</i> times its tangent." : "It does not move.";
  if (formula.indices[0] === "j") {
    const [from, to] = along.queries;
    return `This is a sum over all queries, of which only ${from} to ${to - 1} were moved.`;
  }
  return "This variable was not computed along the tangent.";
}

function sliderHtml(variable) {
  const part = partAlong(variable);
  const isAll = part.rows === variable.record.shape[0] && part.columns === variable.record.shape[1];
  return `<p class="slider"><label for="step">All inputs move by <i>e</i> times their tangents</label>
<input id="step" type="range" min="0" max="${PAGE.steps.length - 1}" value="${state.step}"></p>
<div class="curve"><div id="plot"></div><dl class="stats" id="along-numbers"></dl></div>
${isAll ? "" : `<p class="help">Known for ${partWords(variable.head.along)}.</p>`}`;
}

function changesHtml(variable) {
  const map = (id, caption) => {
    const canvas = `<canvas id="${id}" role="img" aria-label="Heat map of the change of every cell"></canvas>`;
    return `<figure><figcaption>${caption}</figcaption>${canvas}</figure>`;
  };
  const prediction = `prediction <i>e</i> ${nameHtml(tangentName(variable.name))}`;
  return `<h3>Change of ${nameHtml(variable.name)} along the tangent</h3>
<div class="pair">${map("true-change", "true change")}${map("prediction", prediction)}</div>`;
}

function renderAlongCell() {
  if (!document.getElementById("step")) return;
  const variable = alongVariable();
  const tangent = variables.get(tangentName(variable.name));
  const part = partAlong(variable);
  const size = part.rows * part.columns;
  const values = decode(variable.record.along);
  const zero = PAGE.steps.indexOf(0) * size;
  const base = values.subarray(zero, zero + size); // as exact as the other steps
  drawChanges(variable, tangent, part, values.subarray(state.step * size, (state.step + 1) * size), base);
  document.getElementById("step").setAttribute("aria-valuetext", `e = ${formatNumber(PAGE.steps[state.step], 4)}`);
  const row = Math.min(state.row, variable.endRow - 1);
  const column = Math.min(state.column, variable.endColumn - 1);
  const at = (row - part.row0) * part.columns + (column - part.column0);
  const isIn = (value, first, count) => value >= first && value < first + count;
  const isKnown = isIn(row, part.row0, part.rows) && isIn(column, part.column0, part.columns);
  const curve = PAGE.steps.map((_, n) => values[n * size + at]);
  showCurve(variable, row, column, isKnown ? { curve, base: base[at], slope: tangent.at(row, column) } : null);
}

// known: the values of a cell at the steps, at e = 0, and its tangent; null: there are none.
function showCurve(variable, row, column, known) {
  const plot = document.getElementById("plot");
  const numbers = document.getElementById("along-numbers");
  numbers.innerHTML = "";
  if (!known) {
    plot.innerHTML = "<p>This cell is not among them.</p>";
    return;
  }
  const { curve, base, slope } = known;
  const e = PAGE.steps[state.step];
  const extent = Math.max(...curve) - Math.min(...curve) + Math.abs(slope);
  if (!Number.isFinite(extent)) {
    plot.innerHTML = "<p>This cell or its tangent is not finite along the way: there is no curve to draw.</p>";
    return;
  }
  const change = curve[state.step] - base;
  plot.innerHTML = plotHtml(curve, base, slope, e);
  const term = ([words, value, id]) => `<div><dt>${words}</dt><dd id="along-${id}">${value}</dd></div>`;
  numbers.innerHTML = [
    ["e", formatNumber(e, 4), "e"],
    [`change of ${cellHtml(variable, row, column)}`, formatNumber(change), "true"],
    ["prediction", formatNumber(e * slope), "predicted"],
    ["difference", formatNumber(change - e * slope, 3), "difference"],
  ].map(term).join("");
}

function drawChanges(variable, tangent, part, moved, base) {
  const e = PAGE.steps[state.step];
  const change = moved.map((x, n) => x - base[n]);
  const prediction = change.map((_, n) => {
    return e * tangent.at(part.row0 + Math.floor(n / part.columns), part.column0 + (n % part.columns));
  });
  const largest = Math.max(largestOf(change), largestOf(prediction));
  const isHidden = hiddenIn(variable);
  const [down, right] = [part.row0 - variable.row0, part.column0 - variable.column0];
  const hidden = isHidden && ((row, column) => isHidden(row + down, column + right));
  const box = { width: Math.max(80, mapBox().width / 2 - 12), height: 140, cell: 28 };
  for (const [id, values] of [["true-change", change], ["prediction", prediction]]) {
    const grid = { rows: part.rows, columns: part.columns, values, largest, hidden };
    drawMap(document.getElementById(id), grid, cellSize(grid, box));
  }
}

// ---- The plot ----

const PLOT = { width: 250, height: 156, top: 8, right: 12, bottom: 22, digit: 6.4 };

// Two to six round numbers from low to high, as {value, text}.
function ticks(low, high) {
  const size = 10 ** Math.floor(Math.log10((high - low) / 2));
  const step = [5, 2, 1].map((n) => n * size).find((s) => (high - low) / s >= 2) || size;
  const digits = Math.ceil(Math.log10(Math.max(-low, high) / step)) + 1;
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, n) => {
    const value = (first + n) * step;
    return { value, text: formatNumber(value, Math.min(15, Math.max(1, digits))) };
  });
}

// The curve of the cell and its tangent line, with numbers on both axes.
function plotHtml(curve, base, slope, e) {
  const { steps } = PAGE;
  const line = steps.map((step) => base + step * slope);
  const [low, high] = [Math.min(...curve, ...line), Math.max(...curve, ...line)];
  const room = 0.04 * (high - low) || 0.1 * Math.abs(high) || 1;
  const marks = ticks(low - room, high + room);
  const left = 10 + PLOT.digit * Math.max(...marks.map(({ text }) => text.length));
  const [from, to] = [steps[0], steps[steps.length - 1]];
  const x = (step) => left + ((step - from) / (to - from)) * (PLOT.width - PLOT.right - left);
  const bottom = PLOT.height - PLOT.bottom;
  const y = (value) => bottom - ((value - low + room) / (high - low + 2 * room)) * (bottom - PLOT.top);
  const path = (values) => `M${values.map((value, n) => `${x(steps[n]).toFixed(1)} ${y(value).toFixed(1)}`).join("L")}`;
  const dot = (kind, value) => `<circle class="${kind}" cx="${x(e)}" cy="${y(value)}" r="4"/>`;
  const n = steps.indexOf(e);
  return `<svg width="${PLOT.width}" height="${PLOT.height}" role="img"
aria-label="The cell along the tangent, and its tangent line">
${axesHtml(x, y, left, bottom, marks)}
<path class="line-true" d="${path(curve)}"/><path class="line-predicted" d="${path(line)}"/>
<line class="gap" x1="${x(e)}" x2="${x(e)}" y1="${y(curve[n])}" y2="${y(line[n])}"/>
${dot("dot-true", curve[n])}${dot("dot-predicted", line[n])}</svg>
<p class="plot-key"><span class="key-true">true value</span> <span class="key-predicted">tangent line</span></p>`;
}

function axesHtml(x, y, left, bottom, marks) {
  const line = (x1, y1, x2, y2) => `<line class="axis-line" x1="${x1}" y1="${y1}" x2="${x2}" y2="${y2}"/>`;
  const text = (at, down, anchor, words) => `<text x="${at}" y="${down}" text-anchor="${anchor}">${words}</text>`;
  const rows = marks.map(({ value, text: words }) => {
    return line(left, y(value), PLOT.width - PLOT.right, y(value)) + text(left - 6, y(value) + 4, "end", words);
  });
  const last = PAGE.steps[PAGE.steps.length - 1];
  const columns = [[-last, "start"], [0, "middle"], [last, "end"]].map(([step, anchor]) => {
    const words = formatNumber(step, 3);
    return text(x(step), PLOT.height - 6, anchor, step < 0 ? `<tspan class="name">e</tspan> = ${words}` : words);
  });
  return `${rows.join("")}${line(x(0), PLOT.top, x(0), bottom)}${columns.join("")}`;
}
