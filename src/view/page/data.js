// The numbers in the page. An array is base64 text of little-endian numbers in a script element; it is decoded when it
// is first looked at. Fields of the page's data are documented in src/view/page.c, which writes them.

const PAGE = JSON.parse(document.getElementById("page-data").textContent);
const decoded = new Map();

function decode(stored) {
  if (!decoded.has(stored.id)) {
    const text = atob(document.getElementById(stored.id).textContent);
    const bytes = new Uint8Array(text.length);
    for (let n = 0; n < text.length; n++) bytes[n] = text.charCodeAt(n);
    const Numbers = { f64: Float64Array, f32: Float32Array, u8: Uint8Array }[stored.type];
    decoded.set(stored.id, new Numbers(bytes.buffer));
  }
  return decoded.get(stored.id);
}

// The axes of a variable by its index letters, and what one position on each is called.
const AXES = { i: "query", j: "key", c: "channel", m: "channel", n: "column", r: "" };

// What is chosen. level: "full", or of a long sequence "pooled" or "window"; pooling: "mean" or "peak"; colours: one of
// COLOUR_SCALES.
const state = {
  map: "forward",
  head: 0,
  level: "full",
  pooling: "mean",
  colours: "linear",
  name: null,
  row: 0,
  column: 0,
  step: 0,
};

function currentHead() {
  return PAGE.heads[state.head];
}

// A variable as the page has it at a level: rows x columns numbers, the first of them at (row0, column0).
class Variable {
  constructor(record, head, level) {
    this.record = record;
    this.name = record.name;
    this.axes = record.axes; // two letters; "r": no such axis
    this.head = head;
    this.level = record.full ? "full" : level;
    const pooled = this.level === "pooled";
    this.step = [0, 1].map((n) => (pooled ? poolStep(head, this.axes[n]) : 1));
    [this.row0, this.endRow] = axisRange(this, 0);
    [this.column0, this.endColumn] = axisRange(this, 1);
    this.rows = Math.ceil((this.endRow - this.row0) / this.step[0]);
    this.columns = Math.ceil((this.endColumn - this.column0) / this.step[1]);
  }

  get stored() {
    return this.level === "pooled" ? this.record[state.pooling] : this.record[this.level];
  }

  get isSingle() {
    return this.stored.type === "f32";
  }

  get values() {
    return decode(this.stored);
  }

  // Of all numbers of the variable; of a window its own.
  get stats() {
    if (this.level !== "window") return this.record.stats;
    this.windowStats ??= statsOf(this.values, hiddenFlags(this));
    return this.windowStats;
  }

  // By the indices of the whole variable.
  at(row, column) {
    return this.values[(row - this.row0) * this.columns + (column - this.column0)];
  }
}

function poolStep(head, letter) {
  return letter === "i" ? head.pool.queries : letter === "j" ? head.pool.keys : 1;
}

function axisRange(variable, n) {
  const letter = variable.axes[n];
  const size = variable.record.shape[n];
  const window = variable.level === "window" ? variable.head.window : null;
  if (window && letter === "i") return [window.queries[0], window.queries[1]];
  if (window && letter === "j") return [window.keys[0], window.keys[1]];
  return [0, size];
}

let variables = new Map(); // those of the chosen head and level, by name

function loadHead() {
  const head = currentHead();
  variables = new Map();
  for (const record of PAGE.variables) variables.set(record.name, new Variable(record, head, "full"));
  for (const record of head.variables) variables.set(record.name, new Variable(record, head, state.level));
}

// What agv_stats in src/view/page.h has. hidden: 1 for numbers that are left out; null: none is.
function statsOf(values, hidden) {
  const seen = hidden ? values.filter((_, n) => hidden[n] !== 1) : values;
  const finite = seen.filter(Number.isFinite);
  const nan = seen.filter(Number.isNaN).length;
  const largest = largestOf(finite);
  return {
    norm: largest && largest * Math.sqrt(finite.reduce((sum, x) => sum + (x / largest) ** 2, 0)),
    mean: finite.reduce((sum, x) => sum + x, 0) / Math.max(1, finite.length),
    min: finite.length ? finite.reduce((a, b) => Math.min(a, b)) : 0,
    max: finite.length ? finite.reduce((a, b) => Math.max(a, b)) : 0,
    nan,
    infinite: seen.length - finite.length - nan,
    hidden: values.length - seen.length,
  };
}

// 1 for each cell of a variable that belongs to a hidden pair; null if it has no pairs.
function hiddenFlags(variable) {
  if (variable.axes !== "ij") return null;
  const { record } = variables.get("hidden");
  return decode(variable.level === "pooled" ? record.mean : record[variable.level]);
}

// Whether a cell of a variable belongs to a pair of a query and a key that it does not see, or to a block of such
// pairs; by the indices of the whole variable.
function isHiddenAt(variable, row, column) {
  const values = hiddenFlags(variable);
  if (!values) return false;
  const [r, c] = [(row - variable.row0) / variable.step[0], (column - variable.column0) / variable.step[1]];
  return values[Math.floor(r) * variable.columns + Math.floor(c)] === 1;
}

// A variable of all heads side by side: "Qx" is Q of every head.
function sideBySide(name) {
  const base = name.endsWith("x") ? name.slice(0, -1) : null;
  return base && variables.has(base) ? base : null;
}

function ofHead(name, head) {
  const record = PAGE.heads[head].variables.find((v) => v.name === name);
  return new Variable(record, PAGE.heads[head], state.level);
}

function columnsPerHead(name) {
  return variables.get(name).record.shape[1];
}

// Numbers of formulas that are no variables, by their indices: constants, the positions p and g of a query and a key in
// the whole sequence, and b, what B has beside ALiBi.
const NUMBERS = {
  scale: () => PAGE.scale,
  softcap: () => PAGE.softcap,
  slope: () => currentHead().slope,
  p: (i) => currentHead().first[0] + i,
  g: (j) => currentHead().first[1] + j,
  b: (i, j) => variables.get("B").at(i, j) + NUMBERS.slope() * Math.abs(NUMBERS.p(i) - NUMBERS.g(j)),
};

// The value of an index expression: a letter, or hc.
function indexValue(index, env, width) {
  return index === "hc" ? currentHead().head * width + env.c : env[index];
}

const scope = {
  // Whether a term of a sum belongs to a hidden pair.
  isHidden(term, env) {
    return referencesOf(term).some(({ name, indices }) => {
      const variable = variables.get(name);
      return variable && variable.axes === "ij" && isHiddenAt(variable, env[indices[0]], env[indices[1]]);
    });
  },
  value(reference, env) {
    const { name, indices } = reference;
    if (name in NUMBERS) return NUMBERS[name](...indices.map((index) => env[index]));
    const base = variables.has(name) ? null : sideBySide(name);
    const width = env.width;
    const [row = 0, column = 0] = indices.map((index) => indexValue(index, env, width));
    if (!base) return variables.get(name).at(row, column);
    const columns = columnsPerHead(base);
    return ofHead(base, Math.floor(column / columns)).at(row, column % columns);
  },
  range(sum) {
    for (const reference of referencesOf(sum.a)) {
      const n = reference.indices.indexOf(sum.index);
      if (n < 0) continue;
      const base = variables.has(reference.name) ? null : sideBySide(reference.name);
      const variable = variables.get(base || reference.name);
      if (n === 0) return [variable.row0, variable.endRow];
      return base ? [0, variable.record.shape[1] * PAGE.layer.heads] : [variable.column0, variable.endColumn];
    }
    return [0, 0];
  },
};

// The indices of an element of a variable. width: columns of a head in the layer's matrices.
function environment(variable, row, column) {
  const env = { width: variable.record.shape[1] };
  [row, column].forEach((value, n) => {
    if (variable.axes[n] !== "r") env[variable.axes[n]] = value;
  });
  return env;
}

// ---- What an element depends on, and what depends on it: lists of {name, row, column}, null for a whole axis ----

function dependenciesOf(variable, formula, row, column) {
  const env = environment(variable, row, column);
  const cells = [];
  for (const reference of referencesOf(formula.tree)) {
    if (reference.name in NUMBERS) continue;
    const base = variables.has(reference.name) ? null : sideBySide(reference.name);
    let [r = 0, c = 0] = reference.indices.map((index) => indexValue(index, env, env.width) ?? null);
    if (base && c !== null && !Number.isNaN(c)) {
      if (Math.floor(c / columnsPerHead(base)) !== currentHead().head) continue;
      c %= columnsPerHead(base);
    }
    cells.push({ name: base || reference.name, row: r, column: Number.isNaN(c) ? null : c });
  }
  return unique(cells);
}

function dependentsOf(variable, table, row, column) {
  const cells = [];
  for (const other of variables.values()) {
    const formula = table[other.name] && table[other.name].formula;
    if (!formula) continue;
    for (const reference of referencesOf(formula.tree)) {
      const env = unify(variable, reference, row, column, other);
      const index = (n) => cellIndex(formula, other, n, env);
      if (env) cells.push({ name: other.name, row: index(0), column: index(1) });
    }
  }
  return unique(cells);
}

// The index on axis n of the elements of `other` that follow from env; null: all of them.
function cellIndex(formula, other, n, env) {
  if (other.axes[n] === "r") return 0;
  return env[formula.indices[n]] ?? null;
}

// The values that the indices of a reference have if it refers to this element; null if it cannot.
function unify(variable, reference, row, column, other) {
  const isBase = reference.name === variable.name;
  if (!isBase && !(reference.name === `${variable.name}x` && !variables.has(reference.name))) return null;
  const width = columnsPerHead(variable.name);
  const values = [row, isBase ? column : currentHead().head * width + column];
  const env = {};
  for (let n = 0; n < reference.indices.length; n++) {
    const index = reference.indices[n];
    if (index !== "hc") {
      env[index] = values[n];
      continue;
    }
    const own = other.record.shape[1];
    env.c = values[n] - currentHead().head * own;
    if (env.c < 0 || env.c >= own) return null;
  }
  return env;
}

function unique(cells) {
  const seen = new Set();
  return cells.filter((cell) => {
    const key = `${cell.name} ${cell.row} ${cell.column}`;
    return !seen.has(key) && seen.add(key);
  });
}
