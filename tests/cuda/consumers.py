#!/usr/bin/env python3
"""What the consumers of Hopper's kernels spill: consumers.py FOLDER [LIST]

FOLDER has the machine code that scripts/cuda-image leaves beside the images, NAME.sm_90a.cubin. A consumer is the code
behind the instruction by which a warpgroup takes registers from another one; the compiler's report counts whole
kernels, and cannot tell it from what its producer spills. Prints a line per kernel whose consumers spill: KERNEL, their
loads and stores of local memory, and how many of both stand in a loop around products that has no such loop inside.

With LIST, a file of such lines, prints the differences instead and fails if there is one."""
import collections
import glob
import os
import struct
import sys

LOAD, STORE, PRODUCT, REGISTERS = 0x983, 0x387, 0x9F0, 0x9C8  # LDL, STL, HGMMA, USETMAXREG
BRANCH, INDIRECT, CALL, EXIT, RETURN, MEET, MET = 0x947, 0x949, 0x944, 0x94D, 0x950, 0x945, 0x941  # BSSY, BSYNC
ALWAYS = 7  # the predicate of an instruction that has none
INDIRECT_TARGETS = 0x34  # in the section .nv.info of a kernel: where its indirect branches lead
BYTES = 16  # of an instruction


def read_sections(elf):
    at, size, count, names = struct.unpack_from("<Q", elf, 0x28) + struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, at + i * size) for i in range(count)]
    start = headers[names][4]
    for name, _, _, _, offset, length in headers:
        end = elf.index(b"\0", start + name)
        yield elf[start + name : end].decode(), elf[offset : offset + length]


def indirect_targets(info):
    """{instruction: its targets} of a section .nv.info."""
    found, at = {}, 0
    while at < len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form != 4:  # the size is the value
            continue
        if attribute == INDIRECT_TARGETS:
            words = list(struct.unpack_from(f"<{size // 4}I", info, at))
            while words:
                branch, _, count = words[:3]
                found[branch // BYTES] = [word // BYTES for word in words[3 : 3 + count]]
                words = words[3 + count :]
        at += size
    return found


def signed(number, bits):
    return number - (1 << bits) if number >> (bits - 1) else number


class Code:
    """Instructions of a kernel: for each its operation, and where it leads."""

    def __init__(self, text, indirect=None):
        self.words = list(struct.iter_unpack("<QQ", text))
        self.operations = [low & 0xFFF for low, _ in self.words]
        self.indirect = indirect or {}
        self.meeting = collections.defaultdict(set)  # where the threads meet that wait at a barrier of the warp
        for i, (low, _) in enumerate(self.words):
            if self.operations[i] == MEET:
                self.meeting[low >> 16 & 15].add(i + 1 + signed(low >> 34, 30) // 4)

    def jump(self, i):
        low, high = self.words[i]
        far = (low >> 34 | high << 30) & (1 << 48) - 1
        return i + 1 + signed(far << 8 | low >> 16 & 0xFF, 56) // 4

    def leads_to(self, i):
        low, operation = self.words[i][0], self.operations[i]
        further = [] if low >> 12 & 15 == ALWAYS else [i + 1]
        if operation in (EXIT, RETURN):
            return further
        if operation == BRANCH:
            return further + [self.jump(i)]
        if operation == CALL:
            return [i + 1, self.jump(i)]
        if operation == INDIRECT:
            return further + self.indirect[i]
        if operation == MET and i + 1 not in self.meeting[low >> 16 & 15]:
            return sorted(self.meeting[low >> 16 & 15])
        return [i + 1]

    def consumer(self):
        """The first instruction behind the one that takes registers; None if there is none."""
        taking = [(low >> 32 & 0xFFF, i) for i, (low, _) in enumerate(self.words) if self.operations[i] == REGISTERS]
        return max(taking)[1] + 1 if taking else None


def reach(first, leads_to, but=None):
    """What is reached from there, in the order of a walk in depth, last things first; not beyond `but`."""
    order, seen, stack = [], {first, but}, [(first, iter(leads_to(first)))]
    while stack:
        node, rest = stack[-1]
        following = next((x for x in rest if x not in seen), None)
        if following is None:
            order.append(stack.pop()[0])
        else:
            seen.add(following)
            stack.append((following, iter(leads_to(following))))
    return order


def dominators(order, before):
    """{node: the last node that every way to it passes}; order: as reach returns it."""
    rank = {node: n for n, node in enumerate(order)}
    first = order[-1]
    last = {first: first}

    def common(x, y):
        while x != y:
            if rank[x] < rank[y]:
                x = last[x]
            else:
                y = last[y]
        return x

    changed = True
    while changed:
        changed = False
        for node in reversed(order[:-1]):
            ways = [x for x in before[node] if x in last]
            passed = ways[0]
            for x in ways[1:]:
                passed = common(passed, x)
            changed |= last.get(node) != passed
            last[node] = passed
    return last


def is_passed(node, goal, last):
    while goal != node and last[goal] != goal:
        goal = last[goal]
    return goal == node


def find_loops(first, leads_to):
    """{the instruction at which a loop begins: all of it}."""
    order = reach(first, leads_to)
    before = collections.defaultdict(list)
    for node in order:
        for following in leads_to(node):
            before[following].append(node)
    last = dominators(order, before)
    loops = {}
    for node in order:
        for head in leads_to(node):
            if is_passed(head, node, last):
                inside = {node} if node == head else set(reach(node, lambda x: before[x], but=head))
                loops[head] = loops.get(head, set()) | inside | {head}
    return loops


def count_spills(code):
    """Loads, stores, and those of both in loops around products that have no such loop inside; None: no consumer."""
    first = code.consumer()
    if first is None:
        return None
    everything = reach(first, code.leads_to)
    spills = [i for i in everything if code.operations[i] in (LOAD, STORE)]
    around = {}
    if spills:
        loops = find_loops(first, code.leads_to)
        around = {head: x for head, x in loops.items() if any(code.operations[i] == PRODUCT for i in x)}
    inner = [x for head, x in around.items() if not any(other in x for other in around if other != head)]
    loads = sum(code.operations[i] == LOAD for i in spills)
    return loads, len(spills) - loads, sum(any(i in x for x in inner) for i in spills)


def spills_of(folder):
    """{kernel: its counts} of all kernels that have consumers."""
    found = {}
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "*.cubin"))):
        with open(path, "rb") as file:
            sections = dict(read_sections(file.read()))
        for name, text in sections.items():
            if name.startswith(".text."):
                kernel = name[len(".text.") :]
                code = Code(text, indirect_targets(sections.get(".nv.info." + kernel, b"")))
                counts = count_spills(code)
                if counts is not None and PRODUCT not in code.operations:
                    sys.exit(f"consumers.py: {kernel} has consumers, but no products: has the encoding changed?")
                if counts is not None:
                    found[kernel] = counts
    return found


def read_list(path):
    with open(path) as file:
        lines = [line.split() for line in file if not line.startswith("#")]
    return {line[0]: tuple(int(x) for x in line[1:]) for line in lines}


def differences(found, listed):
    """What is not as the list says, a line each."""
    words = "{} loads, {} stores, {} of both in loops of products"
    for kernel in sorted(found.keys() | listed.keys()):
        if kernel not in found:
            yield f"{kernel} is in the list, but no kernel with consumers has this name"
        elif found[kernel] == (0, 0, 0) and kernel in listed:
            yield f"{kernel} is in the list, but its consumers do not spill"
        elif found[kernel] != listed.get(kernel, (0, 0, 0)):
            yield (f"{kernel}: its consumers spill {words.format(*found[kernel])}; "
                   f"the list says {words.format(*listed.get(kernel, (0, 0, 0)))}")


# ---- The checks above find what they look for ----


def word(operation, predicate=ALWAYS, jump=0, more=0):
    far = 4 * jump
    low = operation | predicate << 12 | (far & 0xFF) << 16 | (far >> 8 & (1 << 30) - 1) << 34 | more << 32
    return struct.pack("<QQ", low & (1 << 64) - 1, far >> 38 & (1 << 18) - 1)


def test_itself():
    nothing = 0x918
    items = [word(BRANCH, 0, 13), word(REGISTERS, more=232),  # 0: to the producer
             word(LOAD), word(STORE),  # 2: once per item
             word(PRODUCT), word(LOAD), word(BRANCH, 1, 5), word(nothing), word(BRANCH, 0, -5),  # 4: for each tile
             word(BRANCH, 2, -8), word(EXIT), word(nothing),  # 9: the next item
             word(STORE), word(BRANCH, jump=-7),  # 12: of the loop over tiles, out of line
             word(REGISTERS, more=40), word(LOAD), word(EXIT)]  # 14: the producer
    assert count_spills(Code(b"".join(items))) == (2, 2, 2), count_spills(Code(b"".join(items)))
    assert count_spills(Code(word(LOAD) + word(EXIT))) is None
    table = [word(REGISTERS, more=232), word(INDIRECT), word(EXIT), word(LOAD), word(EXIT)]
    assert count_spills(Code(b"".join(table), {1: [2, 3]})) == (1, 0, 0)
    info = struct.pack("<BBHBBH6I", 3, 0x1B, 168, 4, INDIRECT_TARGETS, 20, 16, 0, 2, 32, 48, 0)[:-4]
    assert indirect_targets(info) == {1: [2, 3]}
    found = {"same": (1, 2, 1), "worse": (1, 2, 1), "new": (1, 0, 0), "better": (0, 0, 0), "good": (0, 0, 0)}
    listed = {"same": (1, 2, 1), "worse": (1, 2, 0), "better": (1, 0, 0), "gone": (1, 0, 0)}
    wrong = [line.split(":")[0].split()[0] for line in differences(found, listed)]
    assert wrong == ["better", "gone", "new", "worse"], wrong


def main(folder, path=None):
    test_itself()
    found = spills_of(folder)
    if not found:
        sys.exit(f"consumers.py: {folder} has no machine code of kernels with consumers, *.cubin")
    spilling = {kernel: counts for kernel, counts in sorted(found.items()) if counts != (0, 0, 0)}
    if path is None:
        for kernel, counts in spilling.items():
            print(kernel, *counts)
        return
    wrong = list(differences(found, read_list(path)))
    for line in wrong:
        print("FAIL:", line)
    in_loops = sum(counts[2] > 0 for counts in spilling.values())
    print(f"consumers of {len(found)} kernels: {len(spilling)} spill, {in_loops} of them in a loop of products")
    if wrong:
        sys.exit(f"{len(wrong)} differ from {path}; consumers.py {folder} prints today's list")


if __name__ == "__main__":
    main(*sys.argv[1:])
