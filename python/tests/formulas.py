"""The formulas of docs/math.md in plain NumPy and float64, all five maps at once, written independently of
the library; the tests compare its results with these."""

from __future__ import annotations

from typing import Any

import numpy as np


def maps(q, k, v, *, d_o, d_lse, t, s, td_o, td_lse, **f: Any) -> dict[str, np.ndarray]:
    """o lse dq ... to mu tdq ... sto nu of float64 arrays, each in the shape that the library gives. t, s: the
    tangents of both directions by the names of their inputs; f: the features, as keywords of attngrad.forward."""
    if "q_packed" in f:
        return _packed(q, k, v, d_o=d_o, d_lse=d_lse, t=t, s=s, td_o=td_o, td_lse=td_lse, **f)
    lead = 4 - q.ndim
    up = lambda x, axes=4: _with_axes(np.asarray(x, np.float64), axes)  # noqa: E731
    t4, s4 = ({n: up(x) if n in ("q", "k", "v") else x for n, x in d.items()} for d in (t, s))
    rows = {"d_lse": up(d_lse, 3), "td_lse": up(td_lse, 3)}
    out = _dense(up(q), up(k), up(v), d_o=up(d_o), t=t4, s=s4, td_o=up(td_o), **rows, **f)
    aux = ("dbias", "dtable", "dsink", "tdbias", "tdtable", "tdsink")
    return {n: x if n in aux else x.reshape(x.shape[lead:]) for n, x in out.items()}


def _packed(q, k, v, *, q_packed, k_packed, d_o, d_lse, t, s, td_o, td_lse, **f):
    """Each sequence by itself, with its index as batch_offset for dropout and its own position offsets; bias and
    mask are cut to its lengths."""
    results: dict[str, np.ndarray] = {}
    head_first = lambda x: np.swapaxes(x, 0, 1)  # noqa: E731
    for b in range(len(q_packed) - 1):
        queries = slice(q_packed[b], q_packed[b + 1])
        keys = slice(k_packed[b], k_packed[b + 1])
        where = {"q": queries, "k": keys, "v": keys}
        n_q, n_k = queries.stop - queries.start, keys.stop - keys.start
        features = dict(f)
        tb, sb = ({n: head_first(x[where[n]]) if n in where else x for n, x in d.items()} for d in (t, s))
        for name in ("bias", "mask"):
            if name in f:
                features[name] = _cut(f[name], b, n_q, n_k)
        for direction in (tb, sb):
            if "bias" in direction:
                direction["bias"] = _cut(direction["bias"], b, n_q, n_k)
        for name in ("q_offset", "k_offset"):
            if name + "s" in f:
                features[name] = features.pop(name + "s")[b]
        rows = {
            n: head_first(x[queries])
            for n, x in (("d_o", d_o), ("d_lse", d_lse), ("td_o", td_o), ("td_lse", td_lse))
        }
        features["batch_offset"] = f.get("batch_offset", 0) + b
        qkv = head_first(q[queries]), head_first(k[keys]), head_first(v[keys])
        for name, x in maps(*qkv, t=tb, s=sb, **rows, **features).items():
            of = name.removeprefix("td").removeprefix("d") if name not in ("to", "sto") else "o"
            if of in ("bias", "table", "sink"):
                shape = np.shape(f["bias_table" if of == "table" else of])
                _add_gradient(results.setdefault(name, np.zeros(shape)), x, b)
                continue
            like = {"q": q, "k": k, "v": v, "o": d_o}.get(of, d_lse)
            result = results.setdefault(name, np.full(like.shape, -np.inf if name == "lse" else 0.0))
            result[keys if of in ("k", "v") else queries] = head_first(x)
    return results


def _cut(x, b, n_q, n_k):
    x = _with_axes(x)
    x = x[b : b + 1] if x.shape[0] > 1 else x
    return x[:, :, : n_q if x.shape[2] > 1 else 1, : n_k if x.shape[3] > 1 else 1]


def _add_gradient(total, x, b):
    """Adds the gradient of sequence b to that of the full bias, table or sink."""
    total4, x4 = _with_axes(total), _with_axes(x)
    first = b if total4.shape[0] > 1 and x.ndim == 4 else 0
    total4[first : first + 1, :, : x4.shape[2], : x4.shape[3]] += x4


def _direction(q, k, v, d, group):
    """The tangents of q, k and v, those of k and v repeated for the heads of a group; an absent one is zero."""
    dq, dk, dv = (d.get(n, np.zeros_like(x)) for n, x in (("q", q), ("k", k), ("v", v)))
    return dq, np.repeat(dk, group, axis=1), np.repeat(dv, group, axis=1)


def _dense(q, k, v, *, d_o, d_lse, t, s, td_o, td_lse, **f):
    B, H, Nq, Dk = q.shape
    group = H // k.shape[1]
    (tq, tk, tv), (sq, sk, sv) = (_direction(q, k, v, d, group) for d in (t, s))
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    scale = f.get("scale", Dk**-0.5)
    positions = Positions(B, Nq, k.shape[2], **f)
    bias, tbias, masked, column = _biases(positions, H, t, f)
    sbias = _biases(positions, H, s, f)[1]

    Z = scale * q @ _T(k)
    c = f.get("softcap")
    tanh = np.tanh(Z / c) if c else np.zeros_like(Z)
    phi = c * tanh if c else Z
    phi1 = 1 - tanh**2
    phi2 = -2 * tanh * phi1 / c if c else np.zeros_like(Z)
    visible = positions.visible[:, None] & ~masked
    if "mask" in f:
        visible = visible & (_with_axes(f["mask"]) != 0)
    S = np.where(visible, phi + bias, -np.inf)
    inside = positions.inside[:, None]
    L, P, Ps = _softmax(S, visible, f.get("sink"), inside)
    M = positions.dropout(H, f) if f.get("dropout") else np.ones(S.shape)
    R = P * M
    O = R @ v

    D = (d_o * O).sum(-1) - d_lse
    dP = (d_o @ _T(v)) * M
    dS = P * (dP - D[..., None])
    dZ = dS * phi1
    ts = t.get("sink", np.zeros(H))[None, :, None]
    tZ = scale * (tq @ _T(k) + q @ _T(tk))
    tS = tZ * phi1 + tbias
    mu = (P * tS).sum(-1) + Ps * ts
    tP = P * (tS - mu[..., None])
    tO = (tP * M) @ v + R @ tv
    tdP = (d_o @ _T(tv) + td_o @ _T(v)) * M
    tD = (tO * d_o + O * td_o).sum(-1) - td_lse
    tdS = P * ((tS - mu[..., None]) * (dP - D[..., None]) + tdP - tD[..., None])
    tdZ = tdS * phi1 + dS * phi2 * tZ

    ss = s.get("sink", np.zeros(H))[None, :, None]
    sZ = scale * (sq @ _T(k) + q @ _T(sk))
    sS = sZ * phi1 + sbias
    smu = (P * sS).sum(-1) + Ps * ss
    stS = phi1 * scale * (tq @ _T(sk) + sq @ _T(tk)) + phi2 * tZ * sZ
    W = (tS - mu[..., None]) * (sS - smu[..., None]) + stS
    nu = (P * W).sum(-1) + Ps * (ts - mu) * (ss - smu)
    sP, stP = P * (sS - smu[..., None]), P * (W - nu[..., None])
    stO = (stP * M) @ v + (tP * M) @ sv + (sP * M) @ tv

    fold = lambda x: x.reshape(B, H // group, group, *x.shape[2:]).sum(2)  # noqa: E731
    out = {"o": O, "lse": L, "to": tO, "mu": mu, "sto": stO, "nu": nu}
    out |= {"dq": scale * dZ @ k, "dk": fold(scale * _T(dZ) @ q), "dv": fold(_T(R) @ d_o)}
    out |= {"tdq": scale * (tdZ @ k + dZ @ tk), "tdk": fold(scale * (_T(tdZ) @ q + _T(dZ) @ tq))}
    out["tdv"] = fold(_T(tP * M) @ d_o + _T(R) @ td_o)
    out |= _aux_gradients(dS, tdS, f, column)
    if "sink" in f:
        out["dsink"] = -(Ps * D).sum((0, 2))
        out["tdsink"] = -(Ps * (ts - mu) * D + Ps * tD).sum((0, 2))
    return out


def _T(x):
    return np.swapaxes(x, -1, -2)


def _with_axes(x, axes=4):
    """x with axes of size 1 before its own."""
    x = np.asarray(x)
    return x.reshape((1,) * (axes - x.ndim) + x.shape)


def _softmax(S, visible, sink, inside):
    """L, P and Ps; inside: whether a query is not padding."""
    s = np.full((1, S.shape[1], 1), -np.inf) if sink is None else np.asarray(sink, np.float64)[None, :, None]
    top = np.maximum(np.where(visible, S, -np.inf).max(-1, initial=-np.inf), s)
    shift = np.where(np.isneginf(top), 0.0, top)
    with np.errstate(divide="ignore"):
        L = shift + np.log(np.exp(S - shift[..., None]).sum(-1) + np.exp(s - shift))
    L = np.where(inside, L, -np.inf)
    finite_L = np.where(np.isneginf(L), 0.0, L)
    P = np.where(visible & inside[..., None], np.exp(S - finite_L[..., None]), 0.0)
    Ps = np.where(inside & ~np.isneginf(L), np.exp(s - finite_L), 0.0)
    return L, P, Ps


def _biases(positions, H, t, f):
    """The sum of all biases, that of their tangents, the pairs that minus infinity masks, and the column of the
    table for each pair."""
    shape = (positions.B, H, positions.Nq, positions.Nk)
    total, tangent, masked, column = np.zeros(shape), np.zeros(shape), np.zeros(shape, bool), None
    if "bias" in f:
        bias = np.broadcast_to(_with_axes(f["bias"]).astype(np.float64), shape)
        masked = np.isneginf(bias)
        total = total + np.where(masked, 0.0, bias)
        tangent = tangent + (_with_axes(t["bias"]) if "bias" in t else 0.0)
    distance = positions.key[:, None, :] - positions.query[:, :, None]
    if "bias_table" in f:
        table = np.atleast_2d(f["bias_table"]).astype(np.float64)
        buckets = np.asarray(f.get("buckets", np.arange(table.shape[1])))
        radius = len(buckets) // 2
        column = buckets[np.clip(distance, -radius, radius) + radius]
        total = total + np.moveaxis(table[:, column], 0, 1)
        if "table" in t:
            tangent = tangent + np.moveaxis(np.atleast_2d(t["table"])[:, column], 0, 1)
    if f.get("alibi") is not None:
        slopes = _slopes(H) if f["alibi"] is True else np.asarray(f["alibi"], np.float64)
        total = total - slopes[None, :, None, None] * np.abs(distance)[:, None]
    return total, tangent, masked, column


def _slopes(H):
    """ALiBi's slopes: those of the largest power of two <= H heads, then every second one of twice as many."""
    n = 1 << (H.bit_length() - 1)
    slopes = [2.0 ** (-8 * (h + 1) / n) for h in range(n)]
    between = [2.0 ** (-8 * (h + 1) / (2 * n)) for h in range(0, 2 * n, 2)]
    return np.array(slopes + between[: H - n])


def _aux_gradients(dS, tdS, f, column):
    out = {}
    if "bias" in f:
        shape = _with_axes(f["bias"]).shape
        axes = tuple(a for a in range(4) if shape[a] == 1)
        for name, x in (("dbias", dS), ("tdbias", tdS)):
            out[name] = x.sum(axes, keepdims=True).reshape(np.shape(f["bias"]))
    if "bias_table" in f:
        table = np.atleast_2d(f["bias_table"])
        for name, x in (("dtable", dS), ("tdtable", tdS)):
            sums = np.zeros(table.shape)
            for h in range(x.shape[1]):
                np.add.at(sums[h if len(table) > 1 else 0], column, x[:, h])
            out[name] = sums.reshape(np.shape(f["bias_table"]))
    return out


class Positions:
    """Positions of queries and keys; which pairs are visible by position and length alone; which queries are
    inside their sequence, not padding."""

    def __init__(self, B, Nq, Nk, **f):
        self.B, self.Nq, self.Nk = B, Nq, Nk
        n_q = np.asarray(f.get("q_lengths", [Nq] * B))
        n_k = np.asarray(f.get("kv_lengths", [Nk] * B))
        i, j = np.arange(Nq), np.arange(Nk)
        shift = n_k - n_q if f.get("align") == "bottom-right" else np.zeros(B, int)
        first_q, first_k = (np.asarray(f.get(n + "s", [f.get(n, 0)] * B)) for n in ("q_offset", "k_offset"))
        self.query = i[None, :] + first_q[:, None] + shift[:, None]
        self.key = j[None, :] + first_k[:, None]
        self.inside = i[None, :] < n_q[:, None]
        seen = (j[None, None, :] < n_k[:, None, None]) & self.inside[:, :, None]
        distance = self.key[:, None, :] - self.query[:, :, None]
        if f.get("causal"):
            seen = seen & (distance <= 0)
        if f.get("window") is not None:
            left, right = (-1 if side is None else side for side in f["window"])
            seen = seen & ((left < 0) | (distance >= -left)) & ((right < 0) | (distance <= right))
        self.visible = seen

    def dropout(self, H, f):
        """The factors of the weights: 0 where dropped, 1 / (1 - p) where kept."""
        p = f["dropout"]
        h = np.arange(H) + f.get("head_offset", 0)
        b = np.arange(self.B) + f.get("batch_offset", 0)
        shape = (self.B, H, self.Nq, self.Nk)
        counter = [
            np.broadcast_to(self.key[:, None, None, :] // 4, shape),
            np.broadcast_to(self.query[:, None, :, None] % 2**32, shape),
            np.broadcast_to(h[None, :, None, None], shape),
            np.broadcast_to(b[:, None, None, None], shape),
        ]
        words = philox([c.astype(np.uint64) for c in counter], f.get("seed", 0))
        word = np.choose(np.broadcast_to(self.key[:, None, None, :] % 4, shape), words)
        return np.where(word < np.uint64(int(p * 2**32)), 0.0, 1 / (1 - p))


def philox(counter, seed):
    """Philox 4x32-10."""
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    key = [np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)]
    c = list(counter)
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(b >> shift) ^ c[1] ^ key[0], b & mask, (a >> shift) ^ c[3] ^ key[1], a & mask]
        key = [(key[0] + np.uint64(0x9E3779B9)) & mask, (key[1] + np.uint64(0xBB67AE85)) & mask]
    return c
