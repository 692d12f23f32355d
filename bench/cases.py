"""What is timed: the problems, their sizes and threads."""

from dataclasses import dataclass, field

LENGTHS, DIMS = (128, 512, 1024, 2048, 4096, 8192), (64, 128, 256)
HEADS = {64: 12, 128: 6, 256: 4}
UNFUSED_LENGTH = 2048  # beyond it the unfused formulas take too much memory and time


@dataclass
class Case:
    heads: int
    n_q: int
    n_k: int
    dim: int
    threads: int
    causal: bool = False
    window: int = 0  # keys to the left, with causal; 0: all
    dtype: str = "f32"
    isa: str = "auto"
    maps: tuple = ("forward", "vjp", "jvp", "vjp_jvp")
    torch: bool = True
    unfused: bool = False
    once: bool = False
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
        return f"{self.text}{isa}, {self.threads} thread{'s' * (self.threads > 1)}"

    @property
    def pairs(self):
        """Visible pairs of a query and a key; causal cases are square."""
        if not self.causal:
            return self.heads * self.n_q * self.n_k
        width = self.window + 1 if self.window else self.n_q
        return self.heads * sum(min(i + 1, width) for i in range(self.n_q))

    def work(self):
        """Flops of one round, ours and PyTorch's, as one thread would do them: for the time left."""
        ours = {"forward": 4, "vjp": 10, "jvp": 12, "vjp_jvp": 24}
        units = (
            sum(ours[name] for name in self.maps) + (25 if self.torch else 0) + (250 if self.unfused else 0)
        )
        slow = {"auto": 1, "avx2": 2}[self.isa] * (2 if self.dtype == "f64" else 1)
        return units * self.pairs * self.dim * slow / self.threads + 1e11


def heads_of(length, dim):
    """Enough work to fill every thread, little enough for the whole run to take under half an hour."""
    if length == 2048 and dim > 64:
        return 2
    return {4096: 2, 8192: 1}.get(length, HEADS[dim])


def special_cases(threads):
    first = {"torch": False, "maps": ("forward", "vjp")}
    return [
        Case(1, 8192, 8192, 64, 1),
        Case(1, 8192, 8192, 64, threads),
        Case(1, 8192, 8192, 64, 1, causal=True),
        Case(1, 8192, 8192, 64, 1, causal=True, window=256, torch=False),
        Case(12, 1024, 1024, 64, 1, dtype="f64", **first),
        Case(12, 1024, 1024, 64, 1, isa="avx2", **first),
        Case(12, 1, 16384, 64, 1),
        Case(12, 1, 16384, 64, threads),
    ]


def quick_cases(threads):
    return [
        Case(12, 1024, 1024, 64, 1),
        Case(6, 1024, 1024, 128, 1),
        Case(12, 2048, 2048, 64, 1),
        Case(12, 2048, 2048, 64, 1, causal=True),
        Case(12, 2048, 2048, 64, threads, unfused=True),
    ] + special_cases(threads)


def full_cases(threads):
    cases = [
        Case(heads_of(n, d), n, n, d, t, causal=causal, unfused=n <= UNFUSED_LENGTH)
        for n in LENGTHS
        for d in DIMS
        for causal in (False, True)
        for t in sorted({1, threads})
    ]
    seen = {case.label for case in cases}
    cases += [case for case in special_cases(threads) if case.label not in seen]
    cases += [
        Case(6, 1024, 1024, 128, 1, dtype="f64", torch=False, maps=("forward", "vjp")),
        Case(6, 1024, 1024, 128, 1, isa="avx2", torch=False, maps=("forward", "vjp")),
        Case(1, 131072, 131072, 64, threads, torch=False, once=True),
    ]
    return cases
