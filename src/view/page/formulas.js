// The variables of the maps in their order of computation. Each has the formula of docs/math.md (rule) and the formula
// of one element, without the features that the problem does not have (element). Indices: i query, j key, c channel;
// m channel of the model, n column of all heads side by side, hc the column of channel c of the head. Qx is Q of all
// heads side by side, and likewise for the other variables of a head.

const LANES = [
  { id: "forward", title: "Forward", note: "from the inputs to the output" },
  { id: "vjp", title: "Cotangents", note: "back from the output: the gradient of the loss by each variable" },
  { id: "jvp", title: "Tangents", note: "how each variable moves if the inputs move along the tangent" },
  { id: "vjp_jvp", title: "Tangents of cotangents", note: "how each gradient moves along the same tangent" },
];

const MAPS = [
  { id: "forward", lanes: ["forward"] },
  { id: "vjp", lanes: ["forward", "vjp"] },
  { id: "jvp", lanes: ["forward", "jvp"] },
  { id: "vjp_jvp", lanes: ["forward", "vjp", "jvp", "vjp_jvp"] },
];

// [name, column of the graph, what it is, rule, element]
function forwardVariables(f) {
  const R = f.dropout ? "R" : "P";
  const Z = f.softcap ? "softcap * tanh(Z[i,j] / softcap)" : "Z[i,j]";
  const input = (x, i, W) => (f.layer ? `${x}[${i},c] = sum(m, X[${i},m] * ${W}[m,hc])` : null);
  return [
    ["X", 1, "the input, one row per token", null, null],
    ["Wq", 2, "weights for the queries", null, null],
    ["Wk", 2, "weights for the keys", null, null],
    ["Wv", 2, "weights for the values", null, null],
    ["Q", 3, "queries: what each position looks for", f.layer && "X Wq", input("Q", "i", "Wq")],
    ["K", 3, "keys: what each position offers", f.layer && "X Wk", input("K", "j", "Wk")],
    ["V", 3, "values: what each position passes on", f.layer && "X Wv", input("V", "j", "Wv")],
    ["Z", 4, "scaled scores: how well query i fits key j", "scale * Q K^T", "Z[i,j] = scale * sum(c, Q[i,c] * K[j,c])"],
    ["B", 4, "the sum of all additive biases", null,
      f.alibi ? `B[i,j] = ${f.givenBias ? "b[i,j] " : ""}-slope * abs(p[i] - g[j])` : null],
    ["S", 4, "scores as softmax sees them", "phi(Z) + B", `S[i,j] = ${Z}${f.bias ? " + B[i,j]" : ""}`],
    ["s", 5, "the sink: one more logit, which has no value", null, null],
    ["L", 5, "logarithm of each row's sum of exponentials", "log( sum_j exp(S_ij) + exp(s) )",
      `L[i] = log(sum(j, exp(S[i,j]))${f.sink ? " + exp(s)" : ""})`],
    ["P", 5, "attention weights", "exp(S - L)", "P[i,j] = exp(S[i,j] - L[i])"],
    ["Ps", 5, "the weight that the sink takes from each row", "exp(s - L)", "Ps[i] = exp(s - L[i])"],
    ["M", 5, "dropout's mask over 1 - p", null, null],
    ["R", 5, "weights after dropout", "P o M", "R[i,j] = P[i,j] * M[i,j]"],
    ["O", 6, "output: weighted means of the values", "R V", `O[i,c] = sum(j, ${R}[i,j] * V[j,c])`],
    ["C", 7, "the outputs of all heads side by side", "concat(O_1 .. O_H)", "C[i,n] = Ox[i,n]"],
    ["Wo", 7, "weights that mix the heads", null, null],
    ["Y", 8, "the layer's output", "C Wo", "Y[i,m] = sum(n, C[i,n] * Wo[n,m])"],
    ["T", 8, "the output that we would like", null, null],
    ["f", 8, "the loss", "sum((Y - T)^2) / 2", "f[] = sum(i, sum(m, square(Y[i,m] - T[i,m]))) / 2"],
  ];
}

function cotangentVariables(f) {
  const R = f.dropout ? "R" : "P";
  const dZ = f.softcap ? "dZ" : "dS";
  const M = f.dropout ? " * M[i,j]" : "";
  const weights = (x) => `dW${x}[m,n] = sum(i, X[i,m] * d${x.toUpperCase()}x[i,n])`;
  return [
    ["dY", 8, "gradient of the loss by Y", "Y - T", "dY[i,m] = Y[i,m] - T[i,m]"],
    ["dWo", 7, "gradient by Wo", "C^T dY", "dWo[n,m] = sum(i, C[i,n] * dY[i,m])"],
    ["dC", 7, "gradient by C", "dY Wo^T", "dC[i,n] = sum(m, dY[i,m] * Wo[n,m])"],
    ["dO", 6, "gradient of the loss by O", f.layer && "columns of dC", f.layer ? "dO[i,c] = dC[i,hc]" : null],
    ["dL", 6, "gradient of the loss by L", null, null],
    ["D", 5, "what the derivative of softmax subtracts from each row", "rowsum(dO o O) - dL",
      `D[i] = sum(c, dO[i,c] * O[i,c])${f.dL ? " - dL[i]" : ""}`],
    ["dP", 5, "gradient by P", "(dO V^T) o M", `dP[i,j] = sum(c, dO[i,c] * V[j,c])${M}`],
    ["dS", 4, "gradient by S, through softmax", "P o (dP - D)", "dS[i,j] = P[i,j] * (dP[i,j] - D[i])"],
    ["dZ", 4, "gradient by Z, through the softcap", "dS o phi'(Z)", "dZ[i,j] = dS[i,j] * phi1[i,j]"],
    ["phi1", 4, "derivative of the softcap", "phi'(Z)", "phi1[i,j] = 1 - square(tanh(Z[i,j] / softcap))"],
    ["dQ", 3, "gradient by Q", "scale * dZ K", `dQ[i,c] = scale * sum(j, ${dZ}[i,j] * K[j,c])`],
    ["dK", 3, "gradient by K", "scale * dZ^T Q", `dK[j,c] = scale * sum(i, ${dZ}[i,j] * Q[i,c])`],
    ["dV", 3, "gradient by V", "R^T dO", `dV[j,c] = sum(i, ${R}[i,j] * dO[i,c])`],
    ["ds", 5, "gradient by the sink", "- sum_i Ps_i D_i", "ds[] = -sum(i, Ps[i] * D[i])"],
    ["dWq", 2, "gradient by Wq", "X^T dQ", weights("q")],
    ["dWk", 2, "gradient by Wk", "X^T dK", weights("k")],
    ["dWv", 2, "gradient by Wv", "X^T dV", weights("v")],
    ["dX", 1, "gradient by X, which is used three times", "dQ Wq^T + dK Wk^T + dV Wv^T",
      "dX[i,m] = sum(n, dQx[i,n] * Wq[m,n] + dKx[i,n] * Wk[m,n] + dVx[i,n] * Wv[m,n])"],
  ];
}

function tangentVariables(f) {
  const R = f.dropout ? "R" : "P";
  const M = f.dropout ? " * M[i,j]" : "";
  const phi1 = f.softcap ? " * phi1[i,j]" : "";
  const input = (x, i, W) =>
    f.layer ? `${x}[${i},c] = sum(m, tX[${i},m] * ${W}[m,hc] + X[${i},m] * t${W}[m,hc])` : null;
  return [
    ["tX", 1, "direction of X", null, null],
    ["tWq", 2, "direction of Wq", null, null],
    ["tWk", 2, "direction of Wk", null, null],
    ["tWv", 2, "direction of Wv", null, null],
    ["tQ", 3, f.layer ? "tangent of Q" : "direction of Q", f.layer && "tX Wq + X tWq", input("tQ", "i", "Wq")],
    ["tK", 3, f.layer ? "tangent of K" : "direction of K", f.layer && "tX Wk + X tWk", input("tK", "j", "Wk")],
    ["tV", 3, f.layer ? "tangent of V" : "direction of V", f.layer && "tX Wv + X tWv", input("tV", "j", "Wv")],
    ["tB", 4, "direction of the biases", null, null],
    ["tZ", 4, "tangent of Z", "scale * (tQ K^T + Q tK^T)",
      "tZ[i,j] = scale * sum(c, tQ[i,c] * K[j,c] + Q[i,c] * tK[j,c])"],
    ["tS", 4, "tangent of S", "tZ o phi'(Z) + tB", `tS[i,j] = tZ[i,j]${phi1}${f.tB ? " + tB[i,j]" : ""}`],
    ["ts", 5, "direction of the sink", null, null],
    ["mu", 5, "tangent of L: the weighted mean of tS", "rowsum(P o tS) + Ps ts",
      `mu[i] = sum(j, P[i,j] * tS[i,j])${f.sink ? " + Ps[i] * ts" : ""}`],
    ["tP", 5, "tangent of P, through softmax", "P o (tS - mu)", "tP[i,j] = P[i,j] * (tS[i,j] - mu[i])"],
    ["tO", 6, "tangent of O", "(tP o M) V + R tV",
      `tO[i,c] = sum(j, tP[i,j]${M} * V[j,c] + ${R}[i,j] * tV[j,c])`],
    ["tC", 7, "tangent of C", "concat(tO_1 .. tO_H)", "tC[i,n] = tOx[i,n]"],
    ["tWo", 7, "direction of Wo", null, null],
    ["tY", 8, "tangent of the layer's output", "tC Wo + C tWo",
      "tY[i,m] = sum(n, tC[i,n] * Wo[n,m] + C[i,n] * tWo[n,m])"],
    ["tf", 8, "tangent of the loss", "<dY, tY>", "tf[] = sum(i, sum(m, dY[i,m] * tY[i,m]))"],
  ];
}

function secondVariables(f) {
  const R = f.dropout ? "R" : "P";
  const M = f.dropout ? " * M[i,j]" : "";
  const dZ = f.softcap ? "dZ" : "dS";
  const tdP = "sum(c, dO[i,c] * tV[j,c] + tdO[i,c] * V[j,c])";
  const weights = (x) => {
    const X = x.toUpperCase();
    return `tdW${x}[m,n] = sum(i, tX[i,m] * d${X}x[i,n] + X[i,m] * td${X}x[i,n])`;
  };
  const share = (x) => {
    const X = x.toUpperCase();
    return `td${X}x[i,n] * W${x}[m,n] + d${X}x[i,n] * tW${x}[m,n]`;
  };
  return [
    ["tdY", 8, "tangent of dY", "tY", "tdY[i,m] = tY[i,m]"],
    ["tdWo", 7, "tangent of dWo", "tC^T dY + C^T tdY", "tdWo[n,m] = sum(i, tC[i,n] * dY[i,m] + C[i,n] * tdY[i,m])"],
    ["tdC", 7, "tangent of dC", "tdY Wo^T + dY tWo^T",
      "tdC[i,n] = sum(m, tdY[i,m] * Wo[n,m] + dY[i,m] * tWo[n,m])"],
    ["tdO", 6, "tangent of dO", f.layer && "columns of tdC", f.layer ? "tdO[i,c] = tdC[i,hc]" : null],
    ["tdL", 6, "tangent of dL", null, null],
    ["tD", 5, "tangent of D", "rowsum(tO o dO + O o tdO) - tdL",
      `tD[i] = sum(c, tO[i,c] * dO[i,c] + O[i,c] * tdO[i,c])${f.tdL ? " - tdL[i]" : ""}`],
    ["tdP", 5, "tangent of dP", "(dO tV^T + tdO V^T) o M", `tdP[i,j] = ${f.dropout ? `(${tdP})${M}` : tdP}`],
    ["tdS", 4, "tangent of dS", "P o ( (tS - mu) o (dP - D) + tdP - tD )",
      "tdS[i,j] = P[i,j] * ((tS[i,j] - mu[i]) * (dP[i,j] - D[i]) + tdP[i,j] - tD[i])"],
    ["phi2", 4, "second derivative of the softcap", "phi''(Z)",
      "phi2[i,j] = -2 / softcap * tanh(Z[i,j] / softcap) * phi1[i,j]"],
    ["tdZ", 4, "tangent of dZ", "tdS o phi'(Z) + dS o phi''(Z) o tZ",
      "tdZ[i,j] = tdS[i,j] * phi1[i,j] + dS[i,j] * phi2[i,j] * tZ[i,j]"],
    ["tdQ", 3, "tangent of dQ", "scale * (tdZ K + dZ tK)",
      `tdQ[i,c] = scale * sum(j, t${dZ}[i,j] * K[j,c] + ${dZ}[i,j] * tK[j,c])`],
    ["tdK", 3, "tangent of dK", "scale * (tdZ^T Q + dZ^T tQ)",
      `tdK[j,c] = scale * sum(i, t${dZ}[i,j] * Q[i,c] + ${dZ}[i,j] * tQ[i,c])`],
    ["tdV", 3, "tangent of dV", "(tP o M)^T dO + R^T tdO",
      `tdV[j,c] = sum(i, tP[i,j]${M} * dO[i,c] + ${R}[i,j] * tdO[i,c])`],
    ["tds", 5, "tangent of ds", "- sum_i ( Ps_i (ts - mu_i) D_i + Ps_i tD_i )",
      "tds[] = -sum(i, Ps[i] * (ts - mu[i]) * D[i] + Ps[i] * tD[i])"],
    ["tdWq", 2, "tangent of dWq", "tX^T dQ + X^T tdQ", weights("q")],
    ["tdWk", 2, "tangent of dWk", "tX^T dK + X^T tdK", weights("k")],
    ["tdWv", 2, "tangent of dWv", "tX^T dV + X^T tdV", weights("v")],
    ["tdX", 1, "tangent of dX", "tdQ Wq^T + dQ tWq^T + tdK Wk^T + dK tWk^T + tdV Wv^T + dV tWv^T",
      `tdX[i,m] = sum(n, ${["q", "k", "v"].map(share).join(" + ")})`],
  ];
}

// Names of formulas that a page without the feature does not show: [name, feature, what it is then].
const ABSENT = [
  ["R", "dropout", "R = P"],
  ["M", "dropout", "M = 1"],
  ["phi", "softcap", "phi(Z) = Z"],
  ["phi'", "softcap", "phi'(Z) = 1"],
  ["dZ", "softcap", "dZ = dS"],
  ["tdZ", "softcap", "tdZ = tdS"],
  ["B", "bias", "B = 0"],
  ["tB", "tB", "tB = 0"],
  ["s", "sink", "exp(s) = 0"],
  ["ts", "sink", "Ps = 0"],
  ["dL", "dL", "dL = 0"],
  ["tdL", "tdL", "tdL = 0"],
];
const FEATURE_NAMES = { dropout: "dropout", softcap: "softcap", bias: "bias", tB: "tangent of a bias", sink: "sink",
  dL: "gradient by L", tdL: "tangent of dL" };

// What the names of numbers mean that are no variables.
const NUMBER_NAMES = {
  slope: "slope: that of this head, by ALiBi",
  p: "p: positions of the queries in the whole sequence",
  g: "g: positions of the keys",
  b: "b: what bias and table add",
};

// Where variables without a formula come from, if they are not given as they are.
const ORIGINS = {
  B: "The sum of what the problem adds to this score: bias, table of relative positions.",
  M: "Zero if the pair is dropped, else 1 / (1 − p); the seed decides.",
};

// Lanes of variables that belong to more than one: the first that is shown has it.
const LANES_OF = { phi1: ["vjp", "jvp"] };

// {name: {name, lanes, column, order, about, rule, formula}}; formula null: given, or computed from what the page does
// not show.
function variableTable(features) {
  const lanes = [forwardVariables, cotangentVariables, tangentVariables, secondVariables];
  const table = {};
  let order = 0;
  lanes.forEach((list, n) => {
    for (const [name, column, about, rule, element] of list(features)) {
      const formula = element ? parseFormula(element) : null;
      table[name] = { name, lanes: LANES_OF[name] || [LANES[n].id], column, order: order++, about, rule, formula };
    }
  });
  return table;
}
