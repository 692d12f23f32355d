"""The cases that are measured: problems, sizes and threads. A case has a label, an estimate of the seconds that its
rounds take and, after it has run, its results. `once`: the case runs in the first sweep only."""

from dataclasses import dataclass, field

from library import MAPS

LENGTHS, DIMS = (128, 512, 1024, 2048, 4096, 8192), (64, 128, 256)
BF16_LENGTHS, BF16_DIMS = (1024, 2048, 4096), (64, 128)
HEADS = {64: 12, 128: 6, 256: 4}
UNFUSED_LENGTH = 2048  # beyond it the unfused formulas take too much memory and time
EVERY_MAP = tuple(MAPS)
FOUR_MAPS = ("forward", "vjp", "jvp", "vjp_jvp")  # of most cases, as a run of all cases takes long
PRODUCTS = ((2048, 768, 768), (320, 128, 128), (4096, 1024, 1024))


def thread_words(threads):
    return f"{threads} thread{'s' * (threads > 1)}"


@dataclass
class Case:
    """The maps of one problem."""

    heads: int
    n_q: int
    n_k: int
    dim: int
    threads: int
    causal: bool = False
    window: int = 0  # keys to the left, with causal; 0: all
    dtype: str = "f32"
    isa: str = "auto"
    maps: tuple = EVERY_MAP
    torch: bool = True
    unfused: bool = False
    once: bool = False
    kind: str = "maps"
    results: dict = field(default_factory=dict)

    @property
    def text(self):
        words = [f"h{self.heads} q{self.n_q} k{self.n_k} d{self.dim} {self.dtype}"]
        words += ["causal"] if self.causal else []
        words += [f"window={self.window},0"] if self.window else []
        return " ".join(words)

    @property
    def label(self):
        isa = "" if self.isa == "auto" else f" {self.isa}"
        return f"{self.text}{isa}, {thread_words(self.threads)}"

    @property
    def pairs(self):
        """Number of visible pairs of a query and a key; causal cases are square."""
        if not self.causal:
            return self.heads * self.n_q * self.n_k
        width = self.window + 1 if self.window else self.n_q
        return self.heads * sum(min(i + 1, width) for i in range(self.n_q))

    def seconds(self, rounds):
        """An estimate: flops per pair and channel, at 130 GFLOP/s per thread in f32."""
        ours = sum(MAPS[name][1] for name in self.maps)
        flops = ours + (25 if self.torch else 0) + (250 if self.unfused else 0)
        slow = {"auto": 1, "avx2": 2}[self.isa] * {"f64": 2, "f32": 1, "bf16": 0.5}[self.dtype]
        round_seconds = flops * self.pairs * self.dim * slow / self.threads / 1.3e11
        return round_seconds + 1 if self.once else (1 + rounds) * (round_seconds + 1)


@dataclass
class LayerCase:
    """Forward and backward of a small multi-head layer."""

    dtype: str
    threads: int
    batch: int = 32
    length: int = 10
    width: int = 128
    heads: int = 4
    kind: str = "layer"
    once: bool = False
    results: dict = field(default_factory=dict)

    @property
    def text(self):
        return f"b{self.batch} h{self.heads} q{self.length} d{self.width // self.heads} {self.dtype}"

    @property
    def label(self):
        return f"layer {self.text}, width {self.width}, {thread_words(self.threads)}"

    def seconds(self, rounds):
        return 0.6 * rounds


@dataclass
class ProductCase:
    """The layer's projection of m rows from k channels to n."""

    m: int
    k: int
    n: int
    dtype: str
    threads: int
    kind: str = "product"
    once: bool = False
    results: dict = field(default_factory=dict)

    @property
    def label(self):
        return f"product {self.m}x{self.k}x{self.n} {self.dtype}, {thread_words(self.threads)}"

    def seconds(self, rounds):
        return 0.8 * rounds


@dataclass
class ErrorCase:
    """The error of the bf16 gradients."""

    heads: int
    length: int
    dim: int
    threads: int
    causal: bool = False
    kind: str = "error"
    once: bool = True
    results: dict = field(default_factory=dict)

    @property
    def text(self):
        causal = " causal" if self.causal else ""
        return f"h{self.heads} q{self.length} k{self.length} d{self.dim} bf16{causal}"

    @property
    def label(self):
        return f"error of {self.text}"

    def seconds(self, _rounds):
        return 2


def heads_of(length, dim):
    """Number of heads: enough for every thread to have work, and few enough for a run of less than half an hour."""
    long = {4096: 2, 8192: 1} if dim == 64 else {2048: 2, 4096: 1, 8192: 1}
    return long.get(length, HEADS[dim])


def special_cases(threads):
    first_order = {"torch": False, "maps": ("forward", "vjp")}
    return [
        Case(1, 8192, 8192, 64, 1),
        Case(1, 8192, 8192, 64, threads),
        Case(1, 8192, 8192, 64, 1, causal=True),
        Case(1, 8192, 8192, 64, 1, causal=True, window=256, torch=False),
        Case(12, 1024, 1024, 64, 1, dtype="f64", **first_order),
        Case(12, 1024, 1024, 64, 1, isa="avx2", **first_order),
    ]


def layer_cases(counts):
    return [LayerCase(dtype, threads) for threads in counts for dtype in ("f32", "bf16")] + [
        ProductCase(*shape, dtype, threads)
        for threads in counts
        for shape in PRODUCTS
        for dtype in ("f32", "bf16")
    ]


def error_cases(threads):
    return [ErrorCase(2, 2048, dim, threads, causal=causal) for dim in BF16_DIMS for causal in (False, True)]


def distinct(cases):
    """Removes duplicates, which occur on a machine with one CPU."""
    return list({case.label: case for case in reversed(cases)}.values())[::-1]


def quick_cases(threads):
    cases = [
        Case(6, 1024, 1024, 128, 1),
        Case(12, 2048, 2048, 64, 1),
        Case(12, 2048, 2048, 64, 1, causal=True),
        Case(12, 2048, 2048, 64, threads, unfused=True),
    ] + special_cases(threads)
    cases += [
        Case(HEADS[dim], 2048, 2048, dim, t, dtype="bf16")
        for dim in BF16_DIMS
        for t in sorted({1, threads})
    ]
    cases += [Case(12, 2048, 2048, 64, 1, causal=True, dtype="bf16")]
    return distinct(cases + layer_cases([threads]) + error_cases(threads))


def full_cases(threads):
    """All cases. The unfused formulas, which take longest, run only for one head size and without a mask."""
    counts = sorted({1, threads})
    cases = [
        Case(
            heads_of(n, d),
            n,
            n,
            d,
            t,
            causal=causal,
            maps=FOUR_MAPS if causal or t > 1 else EVERY_MAP,
            unfused=n <= UNFUSED_LENGTH and d == 64 and not causal,
        )
        for n in LENGTHS
        for d in DIMS
        for causal in (False, True)
        for t in counts
    ]
    cases += special_cases(threads)
    cases += [Case(12, 1, 16384, 64, t) for t in counts]
    cases += [
        Case(6, 1024, 1024, 128, 1, dtype="f64", torch=False, maps=("forward", "vjp")),
        Case(6, 1024, 1024, 128, 1, isa="avx2", torch=False, maps=("forward", "vjp")),
    ]
    cases += [
        Case(HEADS[d], n, n, d, t, causal=causal, dtype="bf16")
        for n in BF16_LENGTHS
        for d in BF16_DIMS
        for causal in (False, True)
        for t in counts
    ]
    cases += layer_cases(counts) + error_cases(threads)
    return distinct(cases + [Case(1, 131072, 131072, 64, threads, maps=FOUR_MAPS, torch=False, once=True)])
