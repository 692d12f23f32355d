// How names, formulas and cells are written.

const SYMBOLS = { mu: "μ", phi1: "φ′", phi2: "φ″", softcap: "c" };
const WORDS = ["scale", "slope"]; // names that are written upright

// "tdWq" -> td, W with the subscript q; "Ox", O of all heads side by side -> [O]
function nameHtml(name) {
  if (!variables.has(name) && sideBySide(name)) return `[${nameHtml(sideBySide(name))}]`;
  if (WORDS.includes(name)) return name;
  if (name in SYMBOLS) return `<i>${SYMBOLS[name]}</i>`;
  const [, prefix = "", base] = name.match(/^(td|d|t)?(.+)$/);
  const [, letter, rest] = base.match(/^(.)(.*)$/);
  return `<span class="math">${prefix}<i>${letter}</i>${rest ? `<sub>${escapeText(rest)}</sub>` : ""}</span>`;
}

// A name that leads to its variable, if the page has it.
function link(name) {
  const target = variables.has(name) ? name : sideBySide(name);
  if (!target || !isShown(target)) return nameHtml(name);
  return `<button type="button" class="name-link" data-variable="${target}">${nameHtml(name)}</button>`;
}

// The formula of docs/math.md: "scale * Q K^T".
function ruleHtml(rule) {
  const words = rule.match(/[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)?|'+|\^T|\^2|[^A-Za-z]/g);
  return words.map(wordHtml).join("");
}

const SIGNS = {
  o: "∘",
  "*": "·",
  "-": "−",
  "^T": "<sup>T</sup>",
  "^2": "<sup>2</sup>",
  "<": "⟨",
  ">": "⟩",
  "'": "′",
  "''": "″",
  phi: "<i>φ</i>",
};

function wordHtml(word) {
  if (word in SIGNS) return SIGNS[word];
  const [base, index] = word.split("_");
  const sub = index ? `<sub>${escapeText(index)}</sub>` : "";
  if (base === "sum" && index) return `Σ${sub}`;
  if (variables.has(base) || table[base]) return link(base) + sub;
  return escapeText(base) + sub;
}

// "64 × 64"; of a window "64 × 64 of 2000 × 2000"
function shapeText(variable) {
  const text = (shape) => shape.filter((_, n) => variable.axes[n] !== "r").join(" × ") || "scalar";
  const whole = text(variable.record.shape);
  const part = variable.level === "window" ? text([variable.rows, variable.columns]) : whole;
  return part === whole ? whole : `${part} of ${whole}`;
}

// "query 0, key 2"
function cellWords(variable, row, column) {
  return [row, column]
    .map((value, n) => (variable.axes[n] === "r" ? null : `${AXES[variable.axes[n]]} ${value}`))
    .filter(Boolean)
    .join(", ");
}

// The element with its indices: P with the subscript 0,2
function cellHtml(variable, row, column) {
  return nameHtml(variable.name) + cellSub(variable, { row, column });
}

// The subscript 0,2; a dot for a whole axis.
function cellSub(variable, { row, column }) {
  const indices = [row, column].filter((_, n) => variable.axes[n] !== "r").map((index) => index ?? "·");
  return indices.length ? `<sub>${indices.join(",")}</sub>` : "";
}
