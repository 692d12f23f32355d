"""The command's results against NumPy: formula.py ATTNGRAD FOLDER

attention() below is the definition, written for one head at a time from the project's contract: the forward
pass and its gradient. Both hold for complex numbers, so that a tangent t is taken exactly: f(x + i h t) has the
derivative along t as its imaginary part over h, for h = 1e-30 without any rounding error of a difference. The second
derivative along t and s is a difference of such derivatives, of order 8 in the distance along s."""
import os
import shutil
import subprocess
import sys

import numpy as np

attngrad, folder = sys.argv[1:]
random = np.random.default_rng(2)
passed = failed = 0
STEP = 1e-30
DISTANCE, WEIGHTS = 4e-3, [4 / 5, -1 / 5, 4 / 105, -1 / 280]  # of the differences along s
VARIABLES = ["q", "k", "v", "bias", "table", "sink"]
TOLERANCE = {"f8": 1e-12, "f4": 2e-5, "f2": 8e-3, "bf16": 6e-2}  # relative to the largest element of an array


def check(holds, what):
    global passed, failed
    passed, failed = passed + bool(holds), failed + (not holds)
    if not holds:
        print("FAIL:", what)


# ---- The definition ----


def philox(counter, key):
    """Philox 4x32-10 of Random123: four words of one counter."""
    c, (k0, k1) = [int(x) & 0xFFFFFFFF for x in counter], key
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(b >> 32) ^ c[1] ^ k0, b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k1, a & 0xFFFFFFFF]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def dropout(o, positions, keys, h, b):
    """M: 0 where a weight is dropped, 1 / (1 - p) where it is kept."""
    p, seed = o.get("dropout", (0.0, 0))
    if p == 0:
        return np.ones((len(positions), len(keys)))
    key = (seed & 0xFFFFFFFF, seed >> 32)
    words = [[philox((g // 4, i, h, b), key)[g % 4] for g in keys] for i in positions]
    return np.where(np.array(words).reshape(len(positions), len(keys)) < int(p * 2**32), 0, 1 / (1 - p))


def alibi(o, heads):
    if "alibi" not in o:
        return np.zeros(heads)
    if o["alibi"] is not None:
        return o["alibi"]
    n = 2 ** int(np.log2(heads))
    slopes = [2.0 ** (-8 * (i + 1) / n) for i in range(n)]
    return np.array(slopes + [2.0 ** (-8 * (2 * i + 1) / (2 * n)) for i in range(heads - n)])


def geometry(o, b, n_q, n_k):
    """Positions of queries and keys, and what causal and window let a query see."""
    shift = n_k - n_q if "bottom-right" in (o.get("causal"), o.get("align")) else 0
    first_q, first_k = (o[n + "s"][b] if n + "s" in o else o.get(n, 0) for n in ["q_offset", "k_offset"])
    p = np.arange(n_q) + first_q + shift
    g = np.arange(n_k) + first_k
    left, right = o.get("window", (-1, -1))
    seen = np.ones((n_q, n_k), bool)
    if "causal" in o:
        seen &= g[None] <= p[:, None]
    if left >= 0:
        seen &= g[None] >= p[:, None] - left
    if right >= 0:
        seen &= g[None] <= p[:, None] + right
    return p, g, seen


def head_slice(array, b, h, n_q, n_k):
    """Head (b, h) of a bias or mask whose axes may be 1 or missing."""
    array = array.reshape((1,) * (4 - array.ndim) + array.shape)
    full = array[b % array.shape[0], h % array.shape[1]]
    return np.broadcast_to(full, (max(n_q, full.shape[0]), max(n_k, full.shape[1])))[:n_q, :n_k]


def add_to_head(total, value, b, h):
    """The transpose of head_slice: sums over axes of size 1. total has four axes."""
    target = total[b % total.shape[0], h % total.shape[1]]
    value = value.sum(0, keepdims=True) if target.shape[0] == 1 else value
    value = value.sum(1, keepdims=True) if target.shape[1] == 1 else value
    target[:value.shape[0], :value.shape[1]] += value


def head(x, o, b, h, n_q, n_k, Q, K, V, dO, dL):
    """One head: O, L, dQ, dK, dV, dS, the columns of the table, and the gradient of the sink."""
    p, g, seen = geometry(o, b, n_q, n_k)
    scale, cap = o.get("scale", 1 / np.sqrt(Q.shape[1])), o.get("softcap", 0)
    Z = scale * Q @ K.T
    S = cap * np.tanh(Z / cap) if cap else Z
    phi1 = 1 - np.tanh(Z / cap) ** 2 if cap else np.ones_like(Z)
    S = S - alibi(o, x["q"].shape[o["head_axis"]])[h] * abs(p[:, None] - g[None])
    if "bias" in x:
        B = head_slice(x["bias"], b, h, n_q, n_k)
        seen = seen & (B.real != -np.inf)
        S = S + np.where(seen, B, 0)
    if "mask" in x:
        seen = seen & (head_slice(x["mask"], b, h, n_q, n_k) != 0)
    columns = bucket(x, o, p, g)
    if "table" in x:
        T = x["table"].reshape(-1, x["table"].shape[-1])
        S = S + T[h % len(T)][columns]
    s = x["sink"][h] if "sink" in x else None
    sees_any = seen.any(1) | (s is not None)
    m = np.max(np.where(seen, S.real, -np.inf), axis=1, initial=-np.inf if s is None else s.real)
    m = np.where(sees_any, m, 0)
    E = np.where(seen, np.exp(np.where(seen, S, 0) - m[:, None]), 0)
    sink = np.exp(s - m) if s is not None else np.zeros(n_q)
    total = np.where(sees_any, E.sum(1) + sink, 1)
    P, Ps = E / total[:, None], sink / total
    M = dropout(o, p, g, h, b)
    O = (P * M) @ V
    L = np.where(sees_any, m + np.log(total), -np.inf)
    D = (dO * O).sum(1) - dL
    dS = P * ((dO @ V.T) * M - D[:, None])
    dZ = dS * phi1
    return O, L, scale * dZ @ K, scale * dZ.T @ Q, (P * M).T @ dO, dS, columns, -(Ps * np.where(sees_any, D, 0)).sum()


def bucket(x, o, p, g):
    if "table" not in x:
        return None
    buckets = o["buckets"] if "buckets" in o else np.arange(x["table"].shape[-1])
    R = len(buckets) // 2
    return np.asarray(buckets)[np.clip(g[None] - p[:, None], -R, R) + R]


def sequences(x, o):
    """(b, n_q, n_k, rows of q, rows of k) of each sequence."""
    if "q_packed" in o:
        cq, ck = o["q_packed"], o["k_packed"]
        for b in range(len(cq) - 1):
            yield b, cq[b + 1] - cq[b], ck[b + 1] - ck[b], (slice(cq[b], cq[b + 1]),), (slice(ck[b], ck[b + 1]),)
        return
    batch = x["q"].shape[0] if x["q"].ndim == 4 else 1
    for b in range(batch):
        n_q = o["q_lengths"][b] if "q_lengths" in o else x["q"].shape[-2]
        n_k = o["kv_lengths"][b] if "kv_lengths" in o else x["k"].shape[-2]
        yield b, n_q, n_k, (b, slice(n_q)), (b, slice(n_k))


def take(array, o, rows, h):
    """A view of one head's rows; array has all its axes: [batch, heads, n, ...] or packed [total, heads, ...]."""
    return array[rows[0]][:, h] if "q_packed" in o else array[rows[0], h][rows[1]]


def widen(array, o, ndim):
    return array if "q_packed" in o else array.reshape((1,) * (ndim - array.ndim) + array.shape)


def attention(x, o):
    """x: arrays by name, among them do and dlse; o: options by name. Returns o, lse and the gradients by name, shaped
    as in files."""
    kind = np.result_type(*x.values(), np.float64)
    q, k, v, dO = (widen(x[n], o, 4) for n in ["q", "k", "v", "do"])
    dL = widen(x["dlse"], o, 3)
    o = dict(o, head_axis=x["q"].ndim - (2 if "q_packed" in o else 3) if x["q"].ndim > 2 else 0)
    if x["q"].ndim == 2:
        x = dict(x, q=x["q"][None])
    heads, kv_heads = q.shape[1], k.shape[1]
    r = {"o": np.zeros(dO.shape, kind), "lse": np.full(dL.shape, -np.inf, kind)}
    r.update(dq=np.zeros(q.shape, kind), dk=np.zeros(k.shape, kind), dv=np.zeros(v.shape, kind))
    if "bias" in x:
        r["dbias"] = np.zeros((1,) * (4 - x["bias"].ndim) + x["bias"].shape, kind)
    if "table" in x:
        r["dtable"] = np.zeros((x["table"].size // x["table"].shape[-1], x["table"].shape[-1]), kind)
    if "sink" in x:
        r["dsink"] = np.zeros(heads, kind)
    for b, n_q, n_k, i, j in sequences(x, o):
        for h in range(heads):
            hk = h // (heads // kv_heads)
            results = head(x, o, b, h, n_q, n_k, take(q, o, i, h), take(k, o, j, hk), take(v, o, j, hk),
                           take(dO, o, i, h), take(dL, o, i, h))
            take(r["o"], o, i, h)[:], take(r["lse"], o, i, h)[:] = results[0], results[1]
            take(r["dq"], o, i, h)[:] = results[2]
            take(r["dk"], o, j, hk)[:] += results[3]
            take(r["dv"], o, j, hk)[:] += results[4]
            if "bias" in x:
                add_to_head(r["dbias"], results[5], b, h)
            if "table" in x:
                np.add.at(r["dtable"][h % len(r["dtable"])], results[6], results[5])
            if "sink" in x:
                r["dsink"][h] += results[7]
    return r


def along(x, t, o):
    """All results of hvp: values, and along the tangents t the derivatives of each."""
    r = attention({n: a + 1j * STEP * t[n] if n in t else a for n, a in x.items()}, o)
    names = {"o": "to", "lse": "mu"}
    with np.errstate(invalid="ignore"):
        tangents = {names.get(n, "t" + n): np.where(np.isfinite(a.real), a.imag / STEP, 0) for n, a in r.items()}
    return {**{n: a.real for n, a in r.items()}, **tangents}


def expected(x, t, s, o):
    """All results of hvp, and those of jvp2 along t and s."""
    first, second = along(x, s, o), {"sto": 0, "nu": 0}
    for n, weight in enumerate(WEIGHTS, 1):
        for step in (n * DISTANCE, -n * DISTANCE):
            moved = along({name: a + step * s[name] if name in s else a for name, a in x.items()}, t, o)
            second = {name: a + weight / (DISTANCE * np.sign(step)) * moved[of]
                      for (name, a), of in zip(second.items(), ["to", "mu"])}
    return {**along(x, t, o), "so": first["to"], "smu": first["mu"], **second}


# ---- The command ----

OPTION = {"table": "bias-table", "q_offset": "q-offset", "k_offset": "k-offset"}
LISTS = ["q_lengths", "kv_lengths", "q_packed", "k_packed", "q_offsets", "k_offsets", "buckets"]


def rounded(array, dtype):
    """The array in a dtype, as float64."""
    if dtype != "bf16":
        return array.astype(dtype).astype("f8")
    bits = array.astype("f4").view("u4")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype("u4").view("f4").astype("f8")


def save(name, array, dtype):
    """Writes one input; returns its name for the command line."""
    path = os.path.join(folder, "in", name)
    if dtype != "bf16":
        np.save(path + ".npy", np.asfortranarray(array.astype(dtype)))
        return path + ".npy"
    data = (array.astype("f4").view("u4") >> 16).astype("u2").tobytes()
    header = '{"x":{"dtype":"BF16","shape":%s,"data_offsets":[0,%d]}}' % (list(array.shape), len(data))
    with open(path + ".safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header.encode() + data)
    return path + ".safetensors:x"


def words(o):
    """The arguments for the options that are not tensors of the maps."""
    for name, value in o.items():
        option = "--" + OPTION.get(name, name).replace("_", "-")
        if name in LISTS:
            yield from [option, save(name, np.asarray(value), "i8" if name != "buckets" else "i4")]
        elif name == "causal":
            yield option if value is None else f"{option}={value}"
        elif name == "alibi":
            yield option if value is None else f"{option}={save(name, np.asarray(value), 'f8')}"
        else:
            yield from [option, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]


def input_dtype(name, dtype):
    return "b1" if name == "mask" else "f8" if name.endswith("dlse") else dtype


def load(out, dtype):
    if dtype != "bf16":
        return {f[:-4]: np.load(os.path.join(out, f)) for f in os.listdir(out)}
    with open(os.path.join(out, "out.safetensors"), "rb") as file:
        from safetensors import deserialize
        views = deserialize(file.read())
    kinds = {"BF16": "u2", "F64": "f8"}
    arrays = {n: np.frombuffer(bytes(v["data"]), kinds[v["dtype"]]).reshape(v["shape"]) for n, v in views}
    return {n: (a.astype("u4") << 16).view("f4") if a.dtype == "u2" else a for n, a in arrays.items()}


def compare(got, wanted, dtype, what):
    tolerance = TOLERANCE["f8" if got.dtype == "f8" and dtype == "f8" else dtype]
    wanted = wanted.reshape(got.shape) if wanted.size == got.size else wanted
    check(got.shape == wanted.shape, f"{what}: shape {got.shape}, not {wanted.shape}")
    if got.shape == wanted.shape:
        finite = np.isfinite(wanted)
        check((np.isfinite(got) == finite).all(), f"{what}: infinities or NaN at other places")
        largest = max(1.0, abs(wanted[finite]).max(initial=0))
        error = abs(got[finite] - wanted[finite]).max(initial=0) / largest
        check(error <= tolerance, f"{what}: off by {error:.2e} of the largest, more than {tolerance}")


RESULTS = {"forward": ["o", "lse"], "jvp": ["o", "lse", "to", "mu"]}
RESULTS["jvp2"] = RESULTS["jvp"] + ["so", "smu", "sto", "nu"]
RESULTS["grad"] = ["o", "lse", "dq", "dk", "dv", "dbias", "dtable", "dsink"]
RESULTS["hvp"] = RESULTS["grad"] + ["to", "mu"] + ["t" + n for n in RESULTS["grad"][2:]]
INPUTS = {"forward": ([], []), "grad": (["do", "dlse"], []), "jvp": ([], VARIABLES), "jvp2": ([], VARIABLES)}
INPUTS["hvp"] = (["do", "dlse"], VARIABLES + ["do", "dlse"])


def check_command(command, x, t, s, o, dtype, want, label):
    out = os.path.join(folder, "out")
    shutil.rmtree(out, ignore_errors=True)
    names = VARIABLES + ["mask"] + INPUTS[command][0]
    inputs = [(n, x[n]) for n in names if n in x] + [("t" + n, t[n]) for n in INPUTS[command][1] if n in t]
    inputs += [("s" + n, s[n]) for n in VARIABLES if n in s and command == "jvp2"]
    line = [attngrad, command, "--out", out, *words(o)]
    for name, array in inputs:
        line += ["--" + OPTION.get(name, name), save(name, array, input_dtype(name, dtype))]
    done = subprocess.run(line, capture_output=True, text=True)
    check(done.returncode == 0, f"{label} {command}: {done.stderr.strip()}")
    if done.returncode == 0:
        got = load(out, dtype)
        check(set(got) == set(RESULTS[command]) & set(want), f"{label} {command}: results {sorted(got)}")
        for name in got:
            wide = name in ["lse", "mu", "smu", "nu"]
            check(got[name].dtype == ("f8" if wide else "f4" if dtype == "bf16" else dtype), f"{label} {name}: dtype")
            compare(got[name], want[name], dtype, f"{label} {command} {name}")


def check_case(label, q, k, v, o=None, dtype="f8", bias=None, mask=None, table=None, sink=None):
    """Random arrays of these shapes, all commands."""
    o = o or {}
    shapes = {"q": q, "k": k, "v": v, "bias": bias, "table": table, "sink": sink, "do": q[:-1] + v[-1:], "dlse": q[:-1]}
    draw = lambda n, s: rounded(random.standard_normal(s), "f8" if n == "dlse" else dtype)
    x = {n: draw(n, s) for n, s in shapes.items() if s is not None}
    t = {n: draw(n, s) for n, s in shapes.items() if s is not None}
    s = {n: draw(n, shapes[n]) for n in VARIABLES if shapes[n] is not None}
    if mask is not None:
        x["mask"] = random.random(mask) < 0.7
    if bias is not None:
        x["bias"][random.random(bias) < 0.1] = -np.inf
    want = expected(x, t, s, o)
    for command in RESULTS:
        check_command(command, x, t, s, o, dtype, want, label)
    return x, t, o


def check_one_direction(x, t, o):
    """jvp2 without a second direction: it is the first one."""
    want = expected(x, t, {n: t[n] for n in VARIABLES if n in t}, o)
    check_command("jvp2", x, t, {}, o, "f8", {n: a for n, a in want.items() if n not in ["so", "smu"]}, "one direction")


def run_forward(x, *more):
    """o of arrays in float32."""
    out = os.path.join(folder, "out")
    shutil.rmtree(out, ignore_errors=True)
    files = [word for n in "qkv" for word in ["--" + n, save(n, x[n], "f4")]]
    done = subprocess.run([attngrad, "forward", "--out", out, *files, *more], capture_output=True, text=True)
    check(done.returncode == 0, f"forward {more}: {done.stderr.strip()}")
    return np.load(os.path.join(out, "o.npy"))


def check_invariant():
    """The keys of few heads are split: a sequence alone has other bits than among others, unless --invariant is given."""
    x = {n: random.standard_normal((8, 4, 4200 if n != "q" else 3, 16)) for n in "qkv"}
    alone = {n: a[2:3] for n, a in x.items()}
    check((run_forward(x, "--invariant")[2:3] == run_forward(alone, "--invariant")).all(), "--invariant: other bits")
    if os.environ.get("ATTNGRAD_BACKEND") != "reference":
        check((run_forward(x)[2:3] != run_forward(alone)).any(), "without --invariant the same bits")


os.makedirs(os.path.join(folder, "in"), exist_ok=True)
check_invariant()
FULL = dict(q=(2, 4, 5, 3), k=(2, 2, 6, 3), v=(2, 2, 6, 4))
check_case("2 axes", (5, 3), (6, 3), (6, 4))
check_case("3 axes", (4, 5, 3), (2, 6, 3), (2, 6, 4))
check_case("3 axes, features", (4, 5, 3), (2, 6, 3), (2, 6, 4), bias=(4, 5, 1), table=(5,), sink=(4,), mask=(5, 6))
check_case("4 axes", **FULL)
check_case("causal", **FULL, o={"causal": None})
check_case("bottom-right", **FULL, o={"causal": "bottom-right", "window": (2, -1)})
check_case("align", **FULL, o={"align": "bottom-right", "window": (2, 1), "alibi": None})
check_case("offsets", **FULL, o={"causal": None, "window": (3, 1), "q_offset": 4, "k_offset": 1, "alibi": None})
check_case("offsets per sequence", **FULL,
           o={"causal": None, "q_offsets": [4, -1], "k_offsets": [1, 0], "alibi": None})
check_case("window that sees nothing", **FULL, o={"window": (0, 0), "q_offset": 3}, sink=(4,))
check_case("scale and softcap", **FULL, o={"scale": -0.7, "softcap": 1.5})
check_case("mask", **FULL, mask=(2, 1, 5, 6))
check_case("bias", **FULL, bias=(1, 4, 5, 6))
check_case("bias of a row", **FULL, bias=(1, 6))
check_case("table", **FULL, table=(4, 7))
check_case("buckets", **FULL, table=(1, 3), o={"buckets": [0, 0, 1, 2, 1, 1, 2]})
check_one_direction(*check_case("sink", **FULL, sink=(4,)))
check_case("slopes", **FULL, o={"alibi": [0.5, 0.25, 0.1, 0.0]})
check_case("six slopes", (6, 5, 3), (1, 6, 3), (1, 6, 3), o={"alibi": None})
check_case("lengths", **FULL, o={"q_lengths": [5, 3], "kv_lengths": [0, 4]}, sink=(4,))
check_case("dropout", **FULL, o={"dropout": (0.4, 0x123456789ABCDEF), "q_offset": 3, "k_offset": 2})
EVERYTHING = {"causal": None, "window": (4, 2), "softcap": 2.0, "scale": 0.6, "dropout": (0.2, 7), "alibi": None,
              "q_lengths": [5, 4], "kv_lengths": [6, 3], "q_offset": 1}
for number_format in TOLERANCE:
    check_case("everything " + number_format, **FULL, dtype=number_format, o=EVERYTHING, bias=(2, 1, 5, 6),
               mask=(1, 4, 5, 1), table=(4, 5), sink=(4,))
PACKED = {"q_packed": [0, 3, 3, 8], "k_packed": [0, 2, 6, 9]}
for number_format in ["f8", "f4", "bf16"]:
    check_case("packed " + number_format, (9, 4, 3), (9, 2, 3), (9, 2, 4), dtype=number_format,
               o={**PACKED, "causal": None, "dropout": (0.3, 5)}, bias=(3, 4, 5, 4), sink=(4,), table=(4, 5))

print(f"{passed} checks passed, {failed} failed")
sys.exit(failed != 0)
