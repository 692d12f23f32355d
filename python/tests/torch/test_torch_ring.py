"""ring_attention, shard and unshard on 1 to 4 ranks against one process."""

import os
import signal
import time

import pytest
import ring_worker
import torch
from ring_worker import CASES, Pool

WAYS = ("keys", "queries", "all_to_all")
BOUND = 1e-12


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    pool = Pool(tmp_path_factory.mktemp("ring"))
    yield pool
    pool.close()


def check(answers, problem=""):
    for rank, worst in enumerate(answers):
        for way, (error, name) in worst.items():
            assert error < BOUND, f"rank {rank}, {way}: {name} has error {error:.1e}. {problem}"


# ---- Derivatives ----


@pytest.mark.parametrize("name", CASES)
def test_first_order(pool, name):
    check(pool.run(ring_worker.against_one_process, 4, name, WAYS, 1))


@pytest.mark.parametrize("name", ["causal", "float_mask", "all"])
def test_first_order_on_few_ranks(pool, name):
    for size in (1, 2, 3):
        check(pool.run(ring_worker.against_one_process, size, name, (*WAYS, "auto"), 1))


@pytest.mark.parametrize("name", CASES)
def test_second_order(pool, name):
    check(pool.run(ring_worker.against_one_process, 3, name, WAYS, 2))


@pytest.mark.parametrize("number", range(8))
def test_random_problems(pool, number):
    """ATTNGRAD_RING_PROBLEMS=300 tries as many more."""
    for seed in (number, *range(8 + number, 8 + int(os.environ.get("ATTNGRAD_RING_PROBLEMS", 0)), 8)):
        for order in (1, 2):
            answers = pool.run(ring_worker.against_one_process, 2 + seed % 3, seed, WAYS, order)
            check(answers, f"problem {seed}: {ring_worker.random_case(seed)}")


@pytest.mark.parametrize("lengths", [(0, 3), (1, 1), (2, 9), (7, 2), (5, 0)])
def test_tiny_lengths(pool, lengths):
    """Fewer positions than chunks: some shards are empty."""
    n_q, n_k = lengths
    changes = {"n_q": n_q, "n_k": n_k, "keywords": {"is_causal": n_k > 1}}
    for size in (3, 4):
        check(pool.run(ring_worker.against_one_process, size, "plain", WAYS, 1, **changes))
    check(pool.run(ring_worker.against_one_process, 4, "window_and_sink", WAYS, 1, n_q=n_q, n_k=n_k))
    check(pool.run(ring_worker.against_one_process, 3, "plain", WAYS, 2, **changes))
    with_matrices = {"rows": {"bias": (4, n_q, n_k)}, "keywords": {"attn_mask": ring_worker.mask(n_q, n_k)}}
    check(pool.run(ring_worker.against_one_process, 4, "plain", WAYS, 1, **changes | with_matrices))
    of_keys = {"shared": {"bias": (4, 1, n_k)}}
    check(pool.run(ring_worker.against_one_process, 4, "plain", WAYS, 1, **changes | of_keys))


@pytest.mark.parametrize("way", WAYS)
def test_ranks_want_different_gradients(pool, way):
    assert max(pool.run(ring_worker.wanted_by_some, 3, way)) < BOUND


def test_vmap(pool):
    for way in WAYS:
        assert max(pool.run(ring_worker.under_vmap, 3, way)) < BOUND


def test_shapes_and_modes(pool):
    for answer in pool.run(ring_worker.shapes_and_modes, 3):
        assert max(answer.values()) < BOUND, answer


@pytest.mark.parametrize("way", WAYS)
def test_views_and_modes(pool, way):
    for answer in pool.run(ring_worker.views_and_modes, 3, way):
        assert all(answer.values()), answer


@pytest.mark.parametrize("way", WAYS)
def test_data_parallel(pool, way):
    assert max(pool.run(ring_worker.in_data_parallel, 3, way)) < BOUND


def test_two_groups(pool):
    for error, message in pool.run(ring_worker.two_groups, 4):
        assert error < BOUND and message == "group: this process is not in it"


def test_unshard(pool):
    for size in (1, 3):
        assert all(all(answers) for answers in pool.run(ring_worker.unsharded, size))


def test_drawn_seed(pool):
    assert max(pool.run(ring_worker.drawn_seed, 3)) < 1e-6


# ---- Bits ----


@pytest.mark.parametrize("way", WAYS)
def test_same_bits(pool, way):
    """Maps in a row on the same tensors; from 3 ranks on a tensor that travelled would be seen to change."""
    for size, dtype in ((3, torch.float32), (4, torch.bfloat16)):
        assert pool.run(ring_worker.same_bits, size, way, dtype) == [(True, True)] * size


def test_invariant_bits(pool):
    for size in (2, 3, 4):
        assert all(pool.run(ring_worker.invariant_bits, size))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_16_bits(pool, dtype):
    """Errors are not above those of one process, as partial results are float32. Only the shares of bias_table and sink
    are rounded on each rank, and may be larger than their sum."""
    for way in WAYS:
        for save_low in (True, False):
            answers = pool.run(ring_worker.low_errors, 4, way, dtype, save_low)
            for name, (ring, single) in answers[0].items():
                allowed = (4.0 if name.endswith(("table", "sink")) else 1.05) * single
                assert 0 < ring < allowed, f"{name} by {way}: {ring:.2e}, one process {single:.2e}"


# ---- Bytes ----


@pytest.mark.parametrize("keywords", [{}, {"is_causal": True}, {"window": (3, 0)}], ids=["full", "causal", "window"])
def test_bytes(pool, keywords):
    """What is sent is what "auto" counts."""
    for way in WAYS:
        answers = pool.run(ring_worker.bytes_of, 4, way, keywords, 4)
        assert sum(sent for sent, _ in answers) == answers[0][1] > 0


def test_window_sends_to_neighbours_only(pool):
    """A chunk is seen by its neighbours, which rank r shares with ranks r - 1 and r + 1 only."""
    full, near = (
        [sent for sent, _ in pool.run(ring_worker.bytes_of, 4, "keys", keywords, 4)]
        for keywords in ({}, {"window": (3, 3)})
    )
    assert [3 * x for x in near] == [full[0], 2 * full[1], 2 * full[2], full[3]]


@pytest.mark.parametrize(
    ("size", "kv_heads", "keywords", "way"),
    [
        (4, 8, {}, "all_to_all"),
        (4, 1, {}, "keys"),
        (3, 8, {}, "queries"),
        (4, 4, {"window": (1, 0)}, "keys"),
    ],
)
def test_auto(pool, size, kv_heads, keywords, way):
    assert pool.run(ring_worker.chosen_way, size, keywords, kv_heads) == [way] * size


# ---- Errors ----

Q, K = (2, 4, 4, 6), (2, 2, 4, 6)  # of rank 0 or 1 of three
ERRORS = [
    ({"q": None}, "TypeError: rank 1: q: NoneType, must be a Tensor"),
    ({"k": torch.zeros(2, 2, 4, 7)}, "ValueError: rank 1: k: head size 7, but q has 6"),
    ({"q": torch.zeros(2, 4, 3, 6)}, "ValueError: rank 0: q: 4 positions, but attngrad.torch.shard gives it 3 of"),
    ({"k": torch.zeros(2, 2, 5, 6), "v": torch.zeros(2, 2, 5, 6)}, "of the 13 that the ranks have together (4, 5, 4)"),
    ({"v": torch.zeros(2, 2, 4, 8)}, "ValueError: rank 1: v: 2 heads of size 8, but rank 0 has 2 heads of size 6"),
    ({"way": "ring"}, "ValueError: rank 1: way: 'ring', must be one of auto, all_to_all, keys, queries"),
    ({"way": "keys"}, "ValueError: rank 1: way: keys, but rank 0 has auto"),
    ({"windows": (1, 1)}, "TypeError: rank 1: windows: ring_attention has no such argument"),
    ({"window": (1, 1)}, "ValueError: rank 1: window: 1,1, but rank 0 has absent"),
    ({"is_causal": False}, "ValueError: rank 1: is_causal: absent, but rank 0 has True"),
    ({"softcap": -1.0}, "ValueError: rank 1: softcap"),
    ({"scale": float("nan")}, "ValueError: rank 1: scale: nan, must be finite"),
    ({"dropout_p": 1.5}, "ValueError: rank 1: dropout_p: 1.5, must be at least 0 and below 1"),
    ({"sink": torch.zeros(3)}, "ValueError: rank 1: sink: shape [3], must be [4]"),
    ({"bias_table": torch.zeros(4, 7)}, "ValueError: rank 1: bias_table: torch.float32, [4, 7], but rank 0 has"),
    ({"kv_lengths": [3, 3]}, "ValueError: rank 1: kv_lengths: [3, 3], but rank 0 has absent"),
    ({"q_packed": [0, 4]}, "ValueError: rank 1: q_packed: packed sequences are [heads, total, d]"),
    ({"q_offsets": [1, 2]}, "ValueError: rank 1: q_offsets: 1,2, but rank 0 has absent"),
    ({"k_offsets": [1]}, "ValueError: rank 1: k_offsets: 1 numbers, but there are 2 sequences"),
    ({"q_offsets": [1, 2], "q_offset": 1}, "ValueError: rank 1: q_offsets: does not go with q_offset"),
    ({"align": "bottom-right", "q_offset": 1}, 'ValueError: rank 1: align: "bottom-right" does not go with'),
    ({"bias": torch.zeros(4, 11)}, "ValueError: rank 1: bias: "),
    ({"k": torch.zeros(K, requires_grad=True)}, "ValueError: rank 1: requires_grad: True, but rank 0 has False"),
    (
        {x: torch.zeros(Q, device="meta") for x in "qkv"} | {"bias_table": None, "sink": None},
        "ValueError: rank 1: q: torch.float32 on meta, leading axes [2], 4 heads of size 6, but rank 0 has",
    ),
    ({"return_lse": True}, "ValueError: rank 1: return_lse: True, but rank 0 has False"),
    ({"return_lse": 1}, "TypeError: rank 1: return_lse: int, must be a bool"),
]


@pytest.mark.parametrize(("changes", "message"), ERRORS, ids=[" ".join(changes) for changes, _ in ERRORS])
def test_error_on_one_rank(pool, changes, message):
    """Every rank raises it, and the next call works."""
    answers = pool.run(ring_worker.message_of, 3, 1, changes)
    assert len(set(answers)) == 1 and message in answers[0], answers[0]
    assert pool.run(ring_worker.message_of, 3, 1, {}) == ["no error"] * 3


def test_error_on_all_ranks(pool):
    """Wrong for the whole sequence only, which no rank knows alone."""
    for changes, message in (
        ({"bias": torch.zeros(1, 11)}, "ValueError: rank 0: bias: 11 keys, but the ranks have 12"),
        ({"kv_lengths": [3, 13]}, "ValueError: kv_lengths: 13, must be from 0 to 12"),
    ):
        answers = pool.run(ring_worker.message_of, 3, None, changes)
        assert len(set(answers)) == 1 and message in answers[0], answers[0]


@pytest.mark.parametrize("name", ["bias", "attn_mask"])
@pytest.mark.parametrize("way", WAYS)
def test_rows_on_some_ranks(pool, name, way):
    """A bias or mask that is cut by query rows on all ranks but one."""
    answers = pool.run(ring_worker.message_of_rows, 3, 1, name, way)
    message = f"ValueError: rank 1: {name}: 1 query rows, but its q has 4"
    assert len(set(answers)) == 1 and message in answers[0], answers[0]
    assert pool.run(ring_worker.message_of, 3, 1, {}) == ["no error"] * 3


def test_error_of_packed(pool):
    for changes, message in (
        ({"k_packed": [0, 5, 13]}, "ValueError: k_packed: [0, 5, 13], must begin with 0, not decrease, and end within"),
        ({"k_packed": [0, 12]}, "ValueError: rank 0: k_packed: 2 offsets, but q_packed has 3"),
        ({"bias": torch.zeros(1, 12)}, "ValueError: rank 0: bias: shape [1, 1, 1, 12], but the weights have [2, 2, 7"),
        ({"kv_lengths": torch.tensor(3)}, "ValueError: rank 0: kv_lengths: does not go with packed sequences"),
        ({}, "no error"),
    ):
        answers = pool.run(ring_worker.message_of_packed, 3, changes)
        assert len(set(answers)) == 1 and message in answers[0], answers[0]


def test_error_of_unshard(pool):
    for shape, dim, message in (
        ((3, 3), -2, "ValueError: rank 0: x: 2 positions, but attngrad.torch.shard gives it"),
        ((2, 4), -2, "ValueError: rank 1: x: torch.float32, other axes [4], but rank 0 has"),
        ((2, 3), 5, "ValueError: rank 1: dim: 5, must be an axis of x, which has 2"),
    ):
        answers = pool.run(ring_worker.message_of_unshard, 3, 1, shape, dim)
        assert len(set(answers)) == 1 and message in answers[0], answers[0]


def test_different_calls(pool):
    """Ranks that do different things say so instead of waiting for each other."""
    for rank, messages in enumerate(pool.run(ring_worker.different_calls, 2)):
        mine, other = ("vjp", "ring_attention") if rank == 0 else ("ring_attention", "vjp")
        expected = f"rank {rank} runs {mine}, rank {1 - rank} {other}: every rank of a group must make the same calls"
        assert len(messages) == 2 and all(expected in message for message in messages)


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_lost_rank(tmp_path, kind):
    """If a rank is lost between or inside calls, the others raise: at once if its process has ended, otherwise after
    the timeout of the process group."""
    pool = Pool(tmp_path, ranks=3, timeout=5)
    try:
        assert pool.run(ring_worker.message_of, 3, None, {}) == ["no error"] * 3
        pool.start(ring_worker.loop_until_error, 3)
        time.sleep(0.5)
        os.kill(pool.processes[1].pid, kind)
        for rank in (0, 2):
            assert pool.answer(rank, seconds=30) != "no error"
    finally:
        pool.close()
