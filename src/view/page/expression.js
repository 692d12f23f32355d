// Formulas of one element, as text: "Z[i,j] = scale * sum(c, Q[i,c] * K[j,c])". A formula is parsed once; its tree is
// evaluated, shown in symbols, shown with its numbers filled in, and searched for what it refers to.

function parseFormula(text) {
  const [left, right] = text.split(/ = (.*)/s);
  const tokens = right.match(/[A-Za-z_][A-Za-z_0-9]*|[0-9.]+|[-+*/(),[\]]/g);
  let at = 0;
  const take = (token) => {
    if (tokens[at] !== token) throw new Error(`${text}: "${token}" expected, not "${tokens[at]}"`);
    at++;
  };

  function parseSum() {
    let node = parseProduct();
    while (tokens[at] === "+" || tokens[at] === "-") {
      node = { kind: tokens[at++], a: node, b: parseProduct() };
    }
    return node;
  }
  function parseProduct() {
    let node = parseFactor();
    while (tokens[at] === "*" || tokens[at] === "/") {
      node = { kind: tokens[at++], a: node, b: parseFactor() };
    }
    return node;
  }
  function parseFactor() {
    const token = tokens[at++];
    if (token === "(") {
      const node = parseSum();
      take(")");
      return node;
    }
    if (token === "-") return { kind: "negative", a: parseFactor() };
    if (/^[0-9.]/.test(token)) return { kind: "number", value: Number(token) };
    if (tokens[at] === "[") return parseReference(token);
    if (tokens[at] === "(") return parseCall(token);
    return { kind: "reference", name: token, indices: [] };
  }
  function parseReference(name) {
    const indices = [];
    do {
      indices.push(tokens[++at]);
      at++;
    } while (tokens[at] === ",");
    take("]");
    return { kind: "reference", name, indices };
  }
  function parseCall(name) {
    take("(");
    let index = null;
    if (name === "sum") {
      index = tokens[at++];
      take(",");
    }
    const a = parseSum();
    take(")");
    return index ? { kind: "sum", index, a } : { kind: "call", name, a };
  }

  const target = left.match(/[A-Za-z_0-9]+/g);
  return { name: target[0], indices: target.slice(1), tree: parseSum() };
}

function children(node) {
  return [node.a, node.b].filter(Boolean);
}

// Every reference in the tree to an element of a variable.
function referencesOf(node) {
  return node.kind === "reference" ? [node] : children(node).flatMap(referencesOf);
}

const FUNCTIONS = {
  exp: Math.exp,
  log: Math.log,
  tanh: Math.tanh,
  abs: Math.abs,
  square: (x) => x * x,
};

// scope: value(reference, env) is the number of a reference, range(sum) the values [from, to) of a sum's index that the
// page has, isHidden(term, env) whether a term is of a pair that is left out. env: the values of the indices, and rest:
// of a sum whose terms the page does not all have, the sum of the others.
function evaluate(node, env, scope) {
  switch (node.kind) {
    case "number":
      return node.value;
    case "reference":
      return scope.value(node, env);
    case "negative":
      return -evaluate(node.a, env, scope);
    case "call":
      return FUNCTIONS[node.name](evaluate(node.a, env, scope));
    case "sum":
      return sumTerms(node, env, scope).reduce((sum, term) => sum + term.value, restOf(node, env));
    default: {
      const a = evaluate(node.a, env, scope);
      const b = evaluate(node.b, env, scope);
      return node.kind === "+" ? a + b : node.kind === "-" ? a - b : node.kind === "*" ? a * b : a / b;
    }
  }
}

function sumTerms(node, env, scope) {
  const [from, to] = scope.range(node);
  const terms = [];
  for (let n = from; n < to; n++) {
    const inner = { ...env, [node.index]: n };
    if (!scope.isHidden(node.a, inner)) terms.push({ env: inner, value: evaluate(node.a, inner, scope) });
  }
  return terms;
}

function restOf(node, env) {
  return env.rest && env.rest.node === node ? env.rest.value : 0;
}

// What `sum`, a part of the tree, must be for the tree to have this value.
function solveFor(sum, node, value, env, scope) {
  if (node === sum) return value;
  const isIn = (child) => child === sum || children(child).some(isIn);
  const inA = isIn(node.a);
  const other = node.b ? evaluate(inA ? node.b : node.a, env, scope) : 0;
  const needed = {
    "+": () => value - other,
    "-": () => (inA ? value + other : other - value),
    "*": () => value / other,
    "/": () => value * other,
    negative: () => -value,
    call: () => Math.exp(value), // the only function of a sum is log
  }[node.kind]();
  return solveFor(sum, inA ? node.a : node.b, needed, env, scope);
}

const MIN_DIGITS = 6;
const MAX_DIGITS = 12;

// The digits that a reader needs to get the same six digits as the page: more if numbers cancel.
function digitsFor(tree, value, env, scope) {
  for (let digits = MIN_DIGITS; digits < MAX_DIGITS; digits++) {
    const rounded = { ...scope, value: (r, inner) => Number(scope.value(r, inner).toPrecision(digits)) };
    if (formatNumber(evaluate(tree, env, rounded)) === formatNumber(value)) return digits;
  }
  return formatNumber(evaluate(tree, env, scope)) === formatNumber(value) ? MAX_DIGITS : MIN_DIGITS;
}

function sumsIn(node) {
  return (node.kind === "sum" ? [node] : []).concat(children(node).flatMap(sumsIn));
}

// ---- Showing ----

const BINDING = { "+": 1, "-": 1, sum: 1, "*": 2, "/": 2, negative: 2 };

function binding(node) {
  return BINDING[node.kind] || 3;
}

function escapeText(text) {
  return String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
}

// Six digits are enough to follow a calculation; a true minus sign.
function formatNumber(x, digits = 6) {
  if (x === null || Number.isNaN(x)) return "NaN";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  const size = Math.abs(x);
  let text = x === 0 ? "0" : String(Number(x.toPrecision(digits)));
  if (size !== 0 && (size < 1e-4 || size >= 1e7)) text = Number(x.toPrecision(digits)).toExponential();
  return text.replace(/-/g, "−");
}

// All digits that the number has.
function formatExactly(x, isSingle) {
  if (!Number.isFinite(x)) return formatNumber(x);
  let text = String(x);
  for (let digits = 6; isSingle && digits <= 9; digits++) {
    text = String(Number(x.toPrecision(digits)));
    if (Math.fround(Number(text)) === x) break;
  }
  return text.replace(/-/g, "−");
}

function showCall(name, argument) {
  if (name === "square") return `(${argument})<sup>2</sup>`;
  return name === "abs" ? `|${argument}|` : `${name}(${argument})`;
}

// Shows a tree as HTML. reference(node): the HTML of a reference; sum(node): that of a sum.
function showTree(node, how) {
  const inner = (child, least) => {
    const html = showTree(child, how);
    return binding(child) < least ? `(${html})` : html;
  };
  switch (node.kind) {
    case "number":
      return formatNumber(node.value);
    case "reference":
      return how.reference(node);
    case "negative":
      return `−${inner(node.a, 3)}`;
    case "call":
      return showCall(node.name, showTree(node.a, how));
    case "sum":
      return how.sum(node);
    case "+":
      return `${inner(node.a, 1)} + ${inner(node.b, 1)}`;
    case "-":
      return `${inner(node.a, 1)} − ${inner(node.b, 2)}`;
    case "*":
      return `${inner(node.a, 2)} · ${inner(node.b, 2)}`;
    default:
      return `${inner(node.a, 2)} / ${inner(node.b, 3)}`;
  }
}

// link(name): the HTML of a name, index(letter): that of an index.
function showSymbols(node, link, index) {
  return showTree(node, {
    reference: (r) => link(r.name) + (r.indices.length ? `<sub>${r.indices.map(index).join(",")}</sub>` : ""),
    sum: (s) => {
      const body = showSymbols(s.a, link, index);
      return `Σ<sub>${s.index}</sub> ${binding(s.a) < 2 ? `(${body})` : body}`;
    },
  });
}

const MAX_TERMS_INLINE = 8;
const MAX_TERMS_OF_MANY = 6;

// The same with numbers in place of symbols. A sum of many terms shows its largest ones and the sum of the others.
function showNumbers(node, env, scope) {
  const text = (x) => formatNumber(x, env.digits);
  const signed = (x) => (x < 0 ? `(${text(x)})` : text(x));
  return showTree(node, {
    reference: (r) => `<span class="number">${signed(scope.value(r, env))}</span>`,
    sum: (s) => showTerms(s, env, scope),
  });
}

function showTerms(node, env, scope) {
  const [from, to] = scope.range(node);
  const terms = sumTerms(node, env, scope);
  const aside = (text) => `<small class="aside"> (${text})</small>`;
  const left = to - from - terms.length;
  const rest = restOf(node, env);
  const parts = shownTerms(node, terms, env, scope, aside);
  const outside = `${formatNumber(rest, env.digits)}${aside("outside the window")}`;
  if (rest !== 0) parts.push(`<span class="rest">${outside}</span>`);
  const hidden = left > 0 ? aside(`${left} hidden ${left > 1 ? "pairs" : "pair"} left out`) : "";
  return (parts.join(" + ") || "0") + hidden;
}

function shownTerms(node, terms, env, scope, aside) {
  const show = (term) => {
    const html = showNumbers(node.a, term.env, scope);
    return binding(node.a) < 1 ? `(${html})` : html;
  };
  if (terms.length <= MAX_TERMS_INLINE) return terms.map(show);
  const bySize = terms.map((_, n) => n).sort((a, b) => Math.abs(terms[b].value) - Math.abs(terms[a].value) || a - b);
  const chosen = new Set(bySize.slice(0, MAX_TERMS_OF_MANY));
  const others = terms.reduce((sum, term, n) => (chosen.has(n) ? sum : sum + term.value), 0);
  const shown = terms.filter((_, n) => chosen.has(n)).map(show);
  const count = aside(`${terms.length - chosen.size} smaller terms`);
  return [...shown, `<span class="rest">${formatNumber(others, env.digits)}${count}</span>`];
}
