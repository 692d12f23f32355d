// The slider: the inputs move along the tangent, x + e tx. The true change of a cell beside e times its tangent.

const PLOT = { width: 360, height: 150, margin: 8 };

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

function renderAlong() {
  const section = document.getElementById("along");
  const variable = alongVariable();
  const isOfGradients = laneOf(state.name).startsWith("vjp");
  if (!PAGE.steps || !lanesShown().includes(isOfGradients ? "vjp_jvp" : "jvp")) {
    section.innerHTML = "";
    return;
  }
  if (!variable) {
    const text = isOfGradients ? NOT_ALONG : normsHtml();
    section.innerHTML = `<h3>Along the tangent</h3>${text}`;
    return;
  }
  section.innerHTML = `<h3>Along the tangent</h3>
<p>All inputs move by <i>e</i> times their tangents.</p>
<p><label for="step">Size <i>e</i> of the move</label>
<input id="step" type="range" min="0" max="${PAGE.steps.length - 1}" value="${state.step}"></p>
<div id="plot"></div><dl class="stats" id="along-numbers"></dl>
<div class="pair">${changeHtml("true-change", "true change")}
${changeHtml("prediction", `prediction <i>e</i> ${nameHtml(tangentName(variable.name))}`)}</div>`;
}

function changeHtml(id, caption) {
  const canvas = `<canvas id="${id}" role="img" aria-label="Heat map of the change of every cell"></canvas>`;
  return `<figure><figcaption>${caption}</figcaption>${canvas}</figure>`;
}

const NOT_ALONG = "<p>This variable was not computed along the tangent.</p>";

function normsHtml() {
  const { norms } = currentHead();
  if (!norms) return NOT_ALONG;
  const rows = PAGE.steps.map((e, n) => {
    const cells = [norms.change[n], norms.error[n]].map((x) => `<td>${formatNumber(x, 4)}</td>`).join("");
    return `<tr><th scope="row">${formatNumber(e, 4)}</th>${cells}</tr>`;
  });
  return `<p>The inputs moved by <i>e</i> times their tangents; norms over the whole output <i>O</i>.</p>
<table><thead><tr><th scope="col">e</th><th scope="col">true change</th><th scope="col">minus e t<i>O</i></th></tr>
</thead><tbody>${rows.join("")}</tbody></table>`;
}

function renderAlongCell() {
  const variable = alongVariable();
  if (!document.getElementById("step") || !variable) return;
  const row = Math.min(state.row, variable.endRow - 1);
  const column = Math.min(state.column, variable.endColumn - 1);
  const tangent = variables.get(tangentName(variable.name));
  const size = variable.record.shape[0] * variable.record.shape[1];
  const values = decode(variable.record.along);
  const zero = PAGE.steps.indexOf(0) * size;
  const base = values.subarray(zero, zero + size); // as exact as the other steps
  const at = row * variable.columns + column;
  const curve = PAGE.steps.map((_, n) => values[n * size + at]);
  const slope = tangent.at(row, column);
  const e = PAGE.steps[state.step];
  drawChanges(variable, tangent, values.subarray(state.step * size, (state.step + 1) * size), base, e);
  if (![base[at], slope, ...curve].every(Number.isFinite)) {
    const text = "This cell or its tangent is not finite along the way: there is no curve to draw.";
    document.getElementById("plot").innerHTML = `<p>${text}</p>`;
    document.getElementById("along-numbers").innerHTML = "";
    return;
  }
  document.getElementById("step").setAttribute("aria-valuetext", `e = ${formatNumber(e, 4)}`);
  document.getElementById("plot").innerHTML = plotHtml(curve, base[at], slope, e);
  document.getElementById("along-numbers").innerHTML = [
    ["e", formatNumber(e, 4), "e"],
    [`true change of ${cellHtml(variable, row, column)}`, formatNumber(curve[state.step] - base[at]), "true"],
    ["prediction", formatNumber(e * slope), "predicted"],
    ["difference", formatNumber(curve[state.step] - base[at] - e * slope, 3), "difference"],
  ].map(([term, value, id]) => `<div><dt>${term}</dt><dd id="along-${id}">${value}</dd></div>`).join("");
}

function drawChanges(variable, tangent, moved, base, e) {
  const change = moved.map((x, n) => x - base[n]);
  const prediction = tangent.values.map((x) => e * x);
  const largest = Math.max(largestOf(change), largestOf(prediction));
  const hidden = gridOf(variable).hidden;
  const box = { width: Math.max(80, mapBox().width / 2 - 12), height: 140, cell: 28 };
  for (const [id, values] of [["true-change", change], ["prediction", prediction]]) {
    const grid = { rows: variable.rows, columns: variable.columns, values, largest, hidden };
    drawMap(document.getElementById(id), grid, cellSize(grid, box));
  }
}

// The curve of the cell and its tangent line.
function plotHtml(curve, base, slope, e) {
  const { width, height, margin } = PLOT;
  const { steps } = PAGE;
  const line = steps.map((step) => base + step * slope);
  const low = Math.min(...curve, ...line);
  const high = Math.max(...curve, ...line);
  const span = high - low || 1;
  const x = (step) => margin + ((step - steps[0]) / (steps[steps.length - 1] - steps[0])) * (width - 2 * margin);
  const y = (value) => height - margin - ((value - low) / span) * (height - 2 * margin);
  const point = (value, step) => `${x(steps[step]).toFixed(1)} ${y(value).toFixed(1)}`;
  const path = (values) => `M${values.map(point).join("L")}`;
  const vertical = (kind, at, from, to) => `<line class="${kind}" x1="${at}" x2="${at}" y1="${from}" y2="${to}"/>`;
  const dot = (kind, value) => `<circle class="${kind}" cx="${x(e)}" cy="${y(value)}" r="4"/>`;
  const n = steps.indexOf(e);
  return `<svg viewBox="0 0 ${width} ${height}" role="img" aria-label="The cell along the tangent, and a line">
${vertical("axis-line", x(0), margin, height - margin)}
<path class="line-true" d="${path(curve)}"/><path class="line-predicted" d="${path(line)}"/>
${vertical("gap", x(e), y(curve[n]), y(line[n]))}${dot("dot-true", curve[n])}${dot("dot-predicted", line[n])}</svg>
<p class="plot-key"><span class="key-true">true value</span> <span class="key-predicted">tangent line</span></p>`;
}
