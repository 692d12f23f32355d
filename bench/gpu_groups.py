"""The groups of rows of bench/gpu.py: which tables of kernels have them, and how long they take."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Group:
    """seconds: of a full run on an H200, reckoned from the times in docs/gpu.md times rounds and runs, not measured."""

    name: str
    tables: tuple[str, ...]
    seconds: int
    what: str


BOTH, PORTABLE, HOPPER = ("sm80", "sm90"), ("sm80",), ("sm90",)
GROUPS = (
    Group("lengths", HOPPER, 75, "bfloat16, N 512 to 32,768, D 64 and 128, beside cuDNN and FlashAttention"),
    Group("d256", HOPPER, 45, "the same at D 256"),
    Group("float16", HOPPER, 20, "the same in float16, N 2,048 and 8,192"),
    Group("gqa", HOPPER, 85, "four query heads for each key head"),
    Group("packed", HOPPER, 25, "sequences of different lengths, beside FlashAttention"),
    Group("window", HOPPER, 25, "windows, beside FlashAttention and over causal alone"),
    Group("derivatives", HOPPER, 30, "jvp, vjp_jvp and jvp_jvp in bfloat16"),
    Group("low", HOPPER, 5, "forward with o_low"),
    Group("features", HOPPER, 20, "forward and vjp with each feature over none"),
    Group("gradients", HOPPER, 15, "vjp with the gradients of bias and table"),
    Group("second", HOPPER, 60, "jvp and vjp_jvp with each feature over none"),
    Group("sparse", HOPPER, 25, "masks by tiles"),
    Group("float32", BOTH, 25, "forward and vjp beside PyTorch's fused kernels"),
    Group("derivatives32", PORTABLE, 55, "jvp, vjp_jvp and jvp_jvp in float32"),
    Group("float64", PORTABLE, 15, "forward and vjp over the probe of the tensor cores"),
    Group("bfloat16", PORTABLE, 15, "forward and vjp beside cuDNN"),
    Group("double", BOTH, 50, "double backward beside PyTorch's unfused formula, time and memory"),
    Group("bias", BOTH, 5, "a bias with its gradient, beside PyTorch's fastest"),
    Group("small", BOTH, 8, "short heads, few queries"),
    Group("host", BOTH, 5, "microseconds of the host"),
)
NAMES = tuple(group.name for group in GROUPS)
SECONDS = {group.name: group.seconds for group in GROUPS}
START = 30  # seconds of a command besides its rows
LIMIT = 500  # of one command


def of_table(table):
    return [group.name for group in GROUPS if table in group.tables]


def commands(table):
    """Lists of groups in order, each of which is a command that stays below the limit."""
    parts, seconds = [[]], START
    for name in of_table(table):
        if parts[-1] and seconds + SECONDS[name] > LIMIT:
            parts.append([])
            seconds = START
        parts[-1].append(name)
        seconds += SECONDS[name]
    return parts


def listing():
    lines = [f"{group.name:14} {group.seconds:4} s  {'+'.join(group.tables):9} {group.what}" for group in GROUPS]
    for table in BOTH:
        for names in commands(table):
            seconds = START + sum(SECONDS[name] for name in names)
            lines.append(f"about {seconds} s: --table {table} --rows {','.join(names)}")
    return lines
