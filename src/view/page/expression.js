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
  square: (x) => x * x,
};

// scope: value(reference, env) is the number of a reference, range(sum) the values [from, to) of a sum's index that the
// page has. env: the values of the indices.
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
      return sumTerms(node, env, scope).reduce((sum, term) => sum + term.value, 0);
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
    terms.push({ env: inner, value: evaluate(node.a, inner, scope) });
  }
  return terms;
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
  if (Number.isNaN(x)) return "NaN";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  const size = Math.abs(x);
  let text = x === 0 ? "0" : String(Number(x.toPrecision(digits)));
  if (size !== 0 && (size < 1e-4 || size >= 1e7)) text = Number(x.toPrecision(digits)).toExponential();
  return text.replace(/-/g, "−");
}

// All digits that the number has.
function formatExactly(x, isSingle) {
  if (!Number.isFinite(x)) return formatNumber(x);
  return String(isSingle ? Number(x.toPrecision(8)) : x).replace(/-/g, "−");
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
      return node.name === "square"
        ? `(${showTree(node.a, how)})<sup>2</sup>`
        : `${node.name}(${showTree(node.a, how)})`;
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

function showSymbols(node, link) {
  return showTree(node, {
    reference: (r) => link(r.name) + (r.indices.length ? `<sub>${r.indices.map(showIndex).join("")}</sub>` : ""),
    sum: (s) => {
      const body = showSymbols(s.a, link);
      return `Σ<sub>${s.index}</sub> ${binding(s.a) < 2 ? `(${body})` : body}`;
    },
  });
}

// The column of a layer's matrix that belongs to channel c of the head.
function showIndex(index) {
  return index === "hc" ? "(hc)" : index;
}

const MAX_TERMS_INLINE = 8;
const MAX_TERMS_OF_MANY = 6;

// The same with numbers in place of symbols. A sum of many terms shows its largest ones and the sum of the others.
function showNumbers(node, env, scope) {
  const signed = (x) => (x < 0 || Object.is(x, -0) ? `(${formatNumber(x)})` : formatNumber(x));
  return showTree(node, {
    reference: (r) => `<span class="number">${signed(scope.value(r, env))}</span>`,
    sum: (s) => showTerms(s, env, scope),
  });
}

function showTerms(node, env, scope) {
  const terms = sumTerms(node, env, scope);
  if (terms.length === 0) return "0";
  const show = (term) => {
    const html = showNumbers(node.a, term.env, scope);
    return binding(node.a) < 1 ? `(${html})` : html;
  };
  if (terms.length <= MAX_TERMS_INLINE) return terms.map(show).join(" + ");
  const bySize = terms.map((_, n) => n).sort((a, b) => Math.abs(terms[b].value) - Math.abs(terms[a].value) || a - b);
  const chosen = new Set(bySize.slice(0, MAX_TERMS_OF_MANY));
  const rest = terms.reduce((sum, term, n) => (chosen.has(n) ? sum : sum + term.value), 0);
  const shown = terms.filter((_, n) => chosen.has(n)).map(show);
  const others = terms.length - chosen.size;
  const count = `<small> (${others} smaller terms)</small>`;
  return `${shown.join(" + ")} + <span class="rest">${formatNumber(rest)}${count}</span>`;
}
