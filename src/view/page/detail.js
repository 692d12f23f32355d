// The chosen variable: formula, heat map, legend, statistics, the arithmetic of the chosen cell.

const MAX_TABLE_CELLS = 4096;
const MAX_JACOBIAN = 256;

function renderDetail() {
  const isOpen = document.getElementById("numbers")?.open;
  const variable = variables.get(state.name);
  const entry = table[state.name];
  const { record } = variable;
  document.getElementById("detail").innerHTML = `<a class="to-graph" href="#card-${state.name}">Back to the graph</a>
<h2>${nameHtml(state.name)} <span class="shape">${escapeText(shapeText(variable))}</span></h2>
<p class="about">${escapeText(entry.about)}</p>
${formulaHtml(entry, record)}
<div class="map-frame">${axisHtml(variable, 1)}${axisHtml(variable, 0)}
<canvas id="map" tabindex="0" role="application" aria-roledescription="heat map" aria-describedby="map-help"
aria-label="${escapeText(`${state.name}, ${shapeText(variable)}`)}"></canvas></div>
<p id="map-help" class="help">Click a cell, or use the arrow keys.</p>
${poolingHtml(variable)}
<div id="legend" class="legend"></div>
<section id="along" aria-label="Along the tangent"></section>
<section id="cell" aria-label="The chosen cell"></section>
<section id="jacobian" aria-label="The softmax Jacobian"></section>
<section id="changes" aria-label="The change of the whole variable"></section>
<dl class="stats" id="stats">${statsHtml(variable)}</dl>
<details id="numbers"${isOpen ? " open" : ""}><summary>All numbers as a table</summary>
<div class="scroll" tabindex="0" role="region" aria-label="Numbers of ${state.name}"></div></details>`;
  renderLegend(variable);
  renderAlong();
  renderCell();
  fillTable();
}

function formulaHtml(entry, record) {
  if (!entry.rule && !entry.formula) return `<p class="formula">${record.absent ? "not given: zero" : "given"}</p>`;
  const rule = entry.rule ? `<p class="formula">${nameHtml(entry.name)} = ${ruleHtml(entry.rule)}</p>` : "";
  if (!entry.formula) return rule;
  const { indices, tree } = entry.formula;
  const sub = indices.length ? `<sub>${indices.join(",")}</sub>` : "";
  const element = `${nameHtml(entry.name)}${sub} = ${showSymbols(tree, link, showIndex({ width: record.shape[1] }))}`;
  return `${rule}<p class="formula element">${element}</p>${remarksHtml(entry)}`;
}

// What the names of a formula mean that have no card.
function remarksHtml({ rule, formula }) {
  const words = new Set((rule || "").match(/[A-Za-z]+'*/g));
  const absent = ABSENT.filter(([word, feature]) => words.has(word) && !PAGE.features[feature]);
  const remarks = [...new Set(absent.map(([, feature]) => feature))].map((feature) => {
    const meanings = absent.filter(([, other]) => other === feature).map(([, , meaning]) => ruleHtml(meaning));
    return `no ${FEATURE_NAMES[feature]}: ${[...new Set(meanings)].join(", ")}`;
  });
  const names = referencesOf(formula.tree).map(({ name }) => name);
  remarks.push(...Object.keys(NUMBER_NAMES).filter((name) => names.includes(name)).map((name) => NUMBER_NAMES[name]));
  const wide = names.find((name) => !variables.has(name) && sideBySide(name));
  if (wide) remarks.push(`${nameHtml(wide)}: ${nameHtml(sideBySide(wide))} of all heads side by side`);
  return remarks.length ? `<p class="note">${remarks.join("; ")}</p>` : "";
}

// How an index is written: its number if env has it; hc, the column of channel c of the head, as a sum.
function showIndex(env) {
  return (index) => {
    if (index !== "hc") return env[index] ?? index;
    const first = currentHead().head * env.width;
    return "c" in env ? first + env.c : first ? `${first}+c` : "c";
  };
}

function axisHtml(variable, n) {
  const letter = variable.axes[n];
  if (letter === "r") return `<span class="axis axis-${n}"></span>`;
  const [from, to] = n === 0 ? [variable.row0, variable.endRow] : [variable.column0, variable.endColumn];
  const index = letter === "n" || letter === "m" ? "" : ` <i>${letter}</i>`;
  return `<span class="axis axis-${n}">${AXES[letter]}${index} ${from} to ${to - 1}</span>`;
}

function poolingHtml(variable) {
  if (variable.level !== "pooled") return "";
  const option = (value, text) => {
    const checked = state.pooling === value ? " checked" : "";
    return `<label><input type="radio" name="pooling" value="${value}"${checked}> ${text}</label>`;
  };
  const [rows, columns] = variable.step;
  return `<fieldset id="pooling"><legend>Each cell is a block of ${rows} × ${columns} numbers:</legend>
${option("mean", "their mean")}${option("peak", "the one of largest magnitude")}</fieldset>`;
}

// The norm of finite numbers may be too large for float64.
function normText({ norm }, digits) {
  return Number.isFinite(norm) ? formatNumber(norm, digits) : "over 1.8e308";
}

function statsHtml({ stats }) {
  const rows = [
    ["norm", normText(stats, 6)],
    ["smallest", formatNumber(stats.min)],
    ["largest", formatNumber(stats.max)],
    ["mean", formatNumber(stats.mean)],
  ];
  if (stats.hidden) rows.push(["hidden pairs", stats.hidden]);
  if (stats.nan) rows.push(["NaN", stats.nan]);
  if (stats.infinite) rows.push(["infinite", stats.infinite]);
  return rows.map(([term, value]) => `<div><dt>${term}</dt><dd>${value}</dd></div>`).join("");
}

function swatch(kind, text) {
  return `<span class="swatch"><span class="${kind}"></span> ${text}</span>`;
}

function renderLegend(variable) {
  const { stats } = variable;
  const beyond = countBeyond(variable);
  const cells = beyond > 1 ? "cells have" : "cell has";
  const cut = beyond ? `<p>${beyond} far larger ${cells} the colour of the end.</p>` : "";
  const hidden = stats.hidden ? swatch("hatch", "hidden pair") : "";
  const odd = stats.nan || stats.infinite ? swatch("not-a-number", "NaN or infinite") : "";
  drawLegend(document.getElementById("legend"), scaleOf(variable), stats.min < 0, cut + hidden + odd);
}

// The palette with the values that stand for its ends, its middle and the places between them, and what else there is
// to say.
function drawLegend(place, largest, isSigned, more) {
  const marks = (isSigned ? [-1, -0.5, 0, 0.5, 1] : [0, 0.5, 1]).map((share) => legendMark(share, largest, isSigned));
  place.innerHTML = `<canvas aria-hidden="true"></canvas><div class="scale">${marks.join("")}</div>${more}`;
  const steps = 129;
  const shareAt = (n) => (isSigned ? (2 * n) / (steps - 1) - 1 : n / (steps - 1));
  const values = Float64Array.from({ length: steps }, (_, n) => legendValue(shareAt(n), largest));
  const canvas = place.querySelector("canvas");
  drawMap(canvas, { rows: 1, columns: steps, values, largest, hidden: null }, { width: 2, height: 12 });
  canvas.style.width = "100%";
}

// The value that a place of the palette stands for: share from -1 to 1.
function legendValue(share, largest) {
  return Math.sign(share) * COLOUR_SCALES[state.colours].value(Math.abs(share)) * largest;
}

function legendMark(share, largest, isSigned) {
  const place = 100 * (isSigned ? (share + 1) / 2 : share);
  const smallest = COLOUR_SCALES[state.colours].value(0) * largest; // zero, but of the logarithmic scale
  const sign = share === 0 && smallest > 0 && isSigned ? "±" : "";
  const value = share === 0 ? smallest : legendValue(share, largest);
  const digits = state.colours === "log" && Math.abs(share) < 1 ? 2 : 3;
  return `<span style="--place: ${place}%">${sign}${formatNumber(value, digits)}</span>`;
}

function mapBox() {
  const frame = document.querySelector(".map-frame");
  const height = document.getElementById("step") ? 260 : 400; // the slider is to be seen below the map
  return { width: frame.clientWidth - 28, height, cell: 64, cellHeight: 40 };
}

function drawDetailMap(marks) {
  const variable = variables.get(state.name);
  const grid = gridOf(variable);
  const size = cellSize(grid, mapBox());
  const own = (list) => list.filter((c) => c.name === state.name).map((c) => toGrid(variable, c));
  drawMap(document.getElementById("map"), grid, size, {
    numbers: hasNumbers(size),
    inputs: own(marks.inputs),
    outputs: own(marks.outputs),
    chosen: toGrid(variable, { row: state.row, column: state.column }),
  });
}

// ---- The chosen cell ----

function renderCell() {
  const variable = variables.get(state.name);
  const marks = relations();
  const isPooled = variable.level === "pooled";
  document.getElementById("cell").innerHTML = isPooled ? blockHtml(variable) : arithmeticHtml(variable, marks);
  drawDetail(marks);
  document.getElementById("live").textContent = liveText(variable);
}

// The pictures: nothing in them has the focus.
function drawDetail(marks) {
  drawDetailMap(marks);
  renderJacobian(variables.get(state.name));
  renderAlongCell();
}

function chosenValue(variable) {
  const { row, column } = toGrid(variable, { row: state.row, column: state.column });
  return variable.values[row * variable.columns + column];
}

function liveText(variable) {
  const what = variable.level === "pooled" ? "block at " : "";
  const value = isHiddenCell(variable) ? "hidden pair" : formatNumber(chosenValue(variable));
  return `${state.name}, ${what}${cellWords(variable, state.row, state.column)}: ${value}`;
}

function isHiddenCell(variable) {
  return isHiddenAt(variable, state.row, state.column);
}

function blockHtml(variable) {
  const ends = [0, 1].map((n) => {
    const start = n === 0 ? state.row : state.column;
    const end = Math.min(start + variable.step[n], n === 0 ? variable.endRow : variable.endColumn);
    const letter = variable.axes[n];
    return letter === "r" ? null : `${AXES[letter]} ${start}${end - start > 1 ? ` to ${end - 1}` : ""}`;
  });
  const { row, column } = toGrid(variable, { row: state.row, column: state.column });
  const at = row * variable.columns + column;
  const value = (kind) => formatNumber(decode(variable.record[kind])[at]);
  const numbers = `Mean ${value("mean")}, largest magnitude ${value("peak")}.`;
  const text = isHiddenCell(variable) ? "No query of this block sees a key of it." : numbers;
  return `<h3>${ends.filter(Boolean).join(", ")}</h3>
<p>${text} Every number of a smaller part is under “Numbers” above.</p>`;
}

function arithmeticHtml(variable, marks) {
  const value = chosenValue(variable);
  const exact = `<output id="value">${formatExactly(value, variable.isSingle)}</output>`;
  const head = `<h3>${cellWords(variable, state.row, state.column) || "The number"}</h3>
<p class="value">${cellHtml(variable, state.row, state.column)} = ${exact}</p>`;
  if (isHiddenCell(variable)) {
    return `${head}<p>Query ${state.row} does not see key ${state.column}: the pair is left out of the softmax,
and what is multiplied by its weight is zero.</p>`;
  }
  return head + calculationHtml(variable, value) + relationsHtml(marks);
}

function calculationHtml(variable, value) {
  const { formula } = table[state.name];
  if (!formula) {
    const origin = variable.record.absent ? "Not given, so it is zero." : "Given, not computed.";
    return `<p>${ORIGINS[state.name] || origin}</p>`;
  }
  const env = environment(variable, state.row, state.column);
  env.rest = outside(formula.tree, env, value);
  env.digits = digitsFor(formula.tree, value, env, scope);
  const names = showSymbols(formula.tree, nameHtml, showIndex(env));
  const otherwise = otherwiseHtml(evaluate(formula.tree, env, scope), value);
  return `<div class="arithmetic" id="arithmetic"><p>= ${names}</p>
<p class="filled">= ${showNumbers(formula.tree, env, scope)}</p>${otherwise}
<p>= <b>${formatNumber(value)}</b></p></div>`;
}

// Why the number is not what its formula gives, if one of the two is not finite.
function otherwiseHtml(result, value) {
  if (Object.is(result, value) || (Number.isFinite(result) && Number.isFinite(value))) return "";
  const why = ["L", "P", "Ps"].includes(state.name)
    ? `from each score of a row the largest is subtracted before exp, and ∞ − ∞ is NaN; a score of −∞ has the weight 0
without any calculation`
    : "in another order, in which numbers that are not finite meet elsewhere";
  return `<p class="note">Calculated like this it would be ${formatNumber(result)}. It is calculated otherwise:
${why}.</p>`;
}

// Of a long sequence the page has a window: of a sum over all queries or keys, what the terms outside it must sum to.
function outside(tree, env, value) {
  const node = sumsIn(tree).find((sum) => state.level === "window" && "ij".includes(sum.index));
  if (!node) return null;
  const total = solveFor(node, tree, value, env, scope);
  const terms = sumTerms(node, env, scope);
  const size = terms.reduce((sum, term) => sum + Math.abs(term.value), Math.abs(total));
  const rest = terms.reduce((sum, term) => sum - term.value, total);
  return Math.abs(rest) > 1e-5 * size ? { node, value: rest } : null;
}

function relationsHtml(marks) {
  const row = (kind, title, cells) => {
    const shown = cells.filter(({ name }) => variables.has(name) && isShown(name));
    const items = shown.map((cell) => `<li>${link(cell.name)}${cellSub(variables.get(cell.name), cell)}</li>`).join("");
    return items ? `<div class="${kind}"><dt>${title}</dt><dd><ul>${items}</ul></dd></div>` : "";
  };
  return `<dl class="relations">${row("inputs", "Uses", marks.inputs)}${row("outputs", "Used by", marks.outputs)}</dl>`;
}

// ---- The softmax Jacobian of the chosen row ----

function renderJacobian(variable) {
  const section = document.getElementById("jacobian");
  const P = variables.get("P");
  if (!["P", "tP", "dS"].includes(state.name) || variable.level === "pooled" || P.columns > MAX_JACOBIAN) {
    section.innerHTML = "";
    return;
  }
  const grid = jacobianOf(P, state.row);
  const count = grid.rows;
  const row = `<i>P</i><sub>${state.row}</sub>`;
  section.innerHTML = `<h3>Softmax Jacobian of row ${state.row}</h3>
<p class="formula"><i>J</i> = diag(${row}) − ${row}<sup>T</sup> ${row}</p>
<canvas id="jacobian-map" role="img" aria-label="Jacobian of row ${state.row}, ${count} by ${count}"></canvas>
<div class="legend"></div><p class="help">${jacobianWords(grid, count < P.record.shape[1])}</p>`;
  const size = cellSize(grid, { ...mapBox(), height: 220 });
  drawMap(document.getElementById("jacobian-map"), grid, size, { numbers: hasNumbers(size) });
  const hidden = grid.hidden ? swatch("hatch", "hidden key") : "";
  const odd = grid.values.every(Number.isFinite) ? "" : swatch("not-a-number", "NaN or infinite");
  drawLegend(section.querySelector(".legend"), grid.largest, true, hidden + odd);
}

// As drawMap wants it.
function jacobianOf(P, row) {
  const keys = Array.from({ length: P.columns }, (_, n) => P.column0 + n);
  const p = keys.map((key) => P.at(row, key));
  const isHidden = keys.map((key) => isHiddenAt(P, row, key));
  const values = Float64Array.from({ length: p.length ** 2 }, (_, n) => {
    const [j, k] = [Math.floor(n / p.length), n % p.length];
    return (j === k ? p[j] : 0) - p[j] * p[k];
  });
  return {
    rows: p.length,
    columns: p.length,
    values,
    largest: largestOf(values),
    hidden: isHidden.includes(true) ? (j, k) => isHidden[j] || isHidden[k] : null,
  };
}

// isPart: there are more keys than the page has.
function jacobianWords({ largest, values }, isPart) {
  if (largest === 0 && values.every(Number.isFinite)) {
    return `It is zero: the weights of this row do not move with its scores, as ${
      isPart ? "these keys have no share of them" : "no key shares the weight with another"
    }.`;
  }
  const all = isPart ? " over all keys" : "";
  const sums = PAGE.features.sink
    ? `Row <i>j</i> sums to <i>P</i><sub>j</sub> times the weight of the sink${all}`
    : `Rows and columns sum to zero${all}`;
  return `How each weight of the row moves with each score of it. ${sums}.`;
}

// ---- All numbers ----

function refillTable() {
  document.querySelector("#numbers div").innerHTML = "";
  fillTable();
}

// If it is open and empty.
function fillTable() {
  const details = document.getElementById("numbers");
  const variable = variables.get(state.name);
  const place = details.querySelector("div");
  if (!details.open || place.firstChild) return;
  const columns = Math.min(variable.columns, 256);
  const rows = Math.min(variable.rows, Math.max(1, Math.floor(MAX_TABLE_CELLS / columns)));
  const cells = (count, text) => Array.from({ length: count }, (_, n) => text(n)).join("");
  const header = cells(columns, (c) => `<th scope="col">${variable.column0 + c * variable.step[1]}</th>`);
  const body = cells(rows, (r) => {
    const own = cells(columns, (c) => `<td>${formatNumber(variable.values[r * variable.columns + c])}</td>`);
    return `<tr><th scope="row">${variable.row0 + r * variable.step[0]}</th>${own}</tr>`;
  });
  const isCut = rows < variable.rows || columns < variable.columns;
  const cut = isCut ? `<p>The first ${rows} × ${columns} of ${variable.rows} × ${variable.columns}.</p>` : "";
  place.innerHTML = `${cut}<table><thead><tr><td></td>${header}</tr></thead><tbody>${body}</tbody></table>`;
}

// ---- Moving through the cells ----

function moveInMap(event) {
  const variable = variables.get(state.name);
  const [down, right] = variable.step;
  const last = {
    row: variable.row0 + (variable.rows - 1) * down,
    column: variable.column0 + (variable.columns - 1) * right,
  };
  const moves = {
    ArrowRight: [state.row, state.column + right],
    ArrowLeft: [state.row, state.column - right],
    ArrowDown: [state.row + down, state.column],
    ArrowUp: [state.row - down, state.column],
    Home: [event.ctrlKey ? variable.row0 : state.row, variable.column0],
    End: [event.ctrlKey ? last.row : state.row, last.column],
    PageDown: [state.row + 10 * down, state.column],
    PageUp: [state.row - 10 * down, state.column],
  };
  if (!(event.key in moves)) return;
  event.preventDefault();
  const [row, column] = moves[event.key];
  const within = (value, low, high) => Math.min(high, Math.max(low, value));
  chooseCell(within(row, variable.row0, last.row), within(column, variable.column0, last.column));
}

function clickMap(event) {
  const variable = variables.get(state.name);
  const box = event.target.getBoundingClientRect();
  const place = (share, count) => Math.max(0, Math.min(count - 1, Math.floor(share * count)));
  const row = place((event.clientY - box.top) / box.height, variable.rows);
  const column = place((event.clientX - box.left) / box.width, variable.columns);
  chooseCell(variable.row0 + row * variable.step[0], variable.column0 + column * variable.step[1]);
}
