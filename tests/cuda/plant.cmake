# Copies the kernels of src/cuda with faults in their geometry, masks, tails and groups, each behind a switch:
#
#     cmake -D FROM=src/cuda/kernels -D TO=FOLDER -P plant.cmake
#
# writes FOLDER/cuda/kernels/* and FOLDER/planted_faults.c, the list of the faults, each with a problem that must find
# it. An expression that is not there exactly once ends the build: the faults follow the kernels.
file(REMOVE_RECURSE ${TO})
file(COPY ${FROM}/ DESTINATION ${TO}/cuda/kernels)
set(faults 0)
set(rows "")

# plant(FILE NAME PROBLEM CALL RIGHT WRONG): the expression RIGHT becomes WRONG. CALL: see planted.h.
function(plant file name problem call right wrong)
    file(READ ${TO}/cuda/kernels/${file} text)
    string(FIND "${text}" "${right}" first)
    string(FIND "${text}" "${right}" last REVERSE)
    if(first EQUAL -1 OR NOT first EQUAL last)
        message(FATAL_ERROR "${file}: not there exactly once: ${right}")
    endif()
    math(EXPR number "${faults} + 1")
    string(REPLACE "${right}" "(planted_fault == ${number} ? (${wrong}) : (${right}))" text "${text}")
    file(WRITE ${TO}/cuda/kernels/${file} "${text}")
    set(faults ${number} PARENT_SCOPE)
    set(rows "${rows}    {\"${name}\", \"${problem}\", ${call}},\n" PARENT_SCOPE)
endfunction()

# ---- Lengths and positions ----
plant(features.cuh "a padded sequence has one key too many" "b3 h1 q70 k90 d20 f32" LENGTHS
    "clamp_row(p.a.kv_lengths[s.b], p.Nk)" "clamp_row(p.a.kv_lengths[s.b] + 1, p.Nk)")
plant(features.cuh "a packed sequence has one key too few" "b3 h1 q90 k90 d20 f32 packed=200,210" PLAIN
    "clamp_row(p.a.k_packed[s.b + 1], p.kv_total) - s.k0" "clamp_row(p.a.k_packed[s.b + 1], p.kv_total) - s.k0 - 1")
plant(features.cuh "the last query is at the end of the padding" "b3 h1 q70 k130 d20 f32 causal align=bottom-right"
    LENGTHS "s.n_k - s.n_q" "p.Nk - p.Nq")
plant(features.cuh "causal shows one key too many" "h1 q70 k90 d20 f32 causal" PLAIN
    "min(s.high, clamp_distance(d))" "min(s.high, clamp_distance(d + 1))")
plant(features.cuh "a window is one key too short on the left" "h1 q130 k130 d20 f32 window=9,200" PLAIN
    "clamp_distance(d - p.window_left)" "clamp_distance(d - p.window_left + 1)")
plant(features.cuh "a window is one key too short on the right" "h1 q130 k130 d20 f32 window=200,9" PLAIN
    "clamp_distance(d + p.window_right)" "clamp_distance(d + p.window_right - 1)")
plant(features.cuh "the positions of keys are not those of their sequence" "b3 h1 q70 k90 d20 f32 causal" OFFSETS
    "p.a.k_offsets == nullptr ? p.a.k_offset : p.a.k_offsets[s.b]" "p.a.k_offset")

# ---- What is added to scores, and dropout ----
plant(features.cuh "the table forgets positions" "h1 q70 k90 d20 f32 table=20 align=bottom-right" PLAIN
    "distance + s.k_shift - s.shift" "distance")
plant(features.cuh "all heads have the first row of the table" "h2 q70 k90 d20 f32 table=20" PLAIN
    "x.h * p.a.table.strides[1] + column" "column")
plant(views.cuh "ALiBi forgets positions" "h1 q70 k90 d20 f32 alibi align=bottom-right" PLAIN
    "at + v.x.s.k_shift - v.x.s.shift" "at")
plant(features.cuh "dropout forgets positions of keys" "b2 h1 q70 k90 d20 f32 dropout=0.4" OFFSETS
    "(uint64_t)(j + x.s.k_shift)" "(uint64_t)j")
plant(features.cuh "all heads drop the same weights" "h2 q70 k90 d20 f32 dropout=0.4" PLAIN
    "(uint32_t)(x.h + p.head_offset)" "(uint32_t)p.head_offset")
plant(views.cuh "the mask is not read" "h1 q70 k90 d20 f32 mask=11qk" PLAIN "mask[at] == 0" "mask[at] > 1")
plant(views.cuh "the backward reads mask and bias transposed" "h1 q80 k80 d20 f32 mask=11qk" PLAIN
    "t.strides[Map::KEYS ? 3 : 2]" "t.strides[2]")

# ---- Tiles: which pairs of one are seen, which tiles are visited; each window ends at the corner of a tile ----
plant(views.cuh "the last key of a row is not seen" "h1 q70 k90 d20 f32 causal" PLAIN
    "min(high + 1, Map::KEYS ? s.n_q : s.n_k)" "min(high, Map::KEYS ? s.n_q : s.n_k)")
plant(views.cuh "a tile of which one corner is seen is skipped on the right" "h1 q130 k130 d20 f32 window=200,33" PLAIN
    "j0 - (i_end - 1) > s.high" "j0 - (i_end - 1) >= s.high")
plant(views.cuh "a tile of which one corner is seen is skipped on the left" "h1 q130 k130 d20 f32 window=33,200" PLAIN
    "j_end - 1 - i0 < s.low" "j_end - 1 - i0 <= s.low")
plant(views.cuh "a tile of which one corner is hidden counts as seen on the right"
    "h1 q130 k130 d20 f32 window=200,62" PLAIN
    "j1 - 1 - i0 <= s.high" "j1 - 1 - i0 <= s.high + 1")
plant(views.cuh "a tile of which one corner is hidden counts as seen on the left"
    "h1 q130 k130 d20 f32 window=30,200" PLAIN
    "j0 - (i1 - 1) >= s.low" "j0 - (i1 - 1) >= s.low - 1")
plant(views.cuh "one key after the end counts as seen" "h1 q70 k127 d20 f32" PLAIN "j1 <= s.n_k" "j1 <= s.n_k + 1")
plant(stream.cuh "the first tile of a window is not visited" "h1 q200 k200 d20 f32 window=9,200" PLAIN
    "max(from, at.from) / T::N" "(max(from, at.from) + T::N - 1) / T::N")
plant(stream.cuh "the last tile of a window is not visited" "h1 q300 k300 d20 f32 window=200,1" PLAIN
    "(min(to + 1, at.to) + T::N - 1) / T::N" "(min(to, at.to) + T::N - 1) / T::N")
plant(stream.cuh "the tile of a tail's last row is not visited" "h1 q129 k129 d20 f32 causal" PLAIN
    "min(at.block_row + T::BLOCK_ROWS, at.n_own) - 1" "min(at.block_row + T::BLOCK_ROWS, at.n_own) - 2")

# ---- Groups ----
plant(stream.cuh "only the first head of a group has gradients" "h4 kv2 q70 k90 d20 f32" PLAIN
    "tiles * (Map::KEYS ? p.group : 1)" "tiles")
plant(stream.cuh "the scores of a group are those of its first head" "h4 kv2 q70 k90 d20 f32" PLAIN
    "stats_of_head<real>(p, x) + (int64_t)row * AGI_CUDA_STATS"
    "stats_of_head<real>(p, at.x) + (int64_t)row * AGI_CUDA_STATS")

# ---- Few queries with many keys: tiles of pairs, splits, and their join ----
plant(tiles.cuh "the rows of a tile are heads first, then queries" "h4 kv2 q5 k600 d20 f32" PLAIN
    "row / group * x.row + row % group * head" "row % group * x.row + row / group * head")
plant(stream.cuh "all heads of a group have the first one's power of two" "h16 kv1 q1 k600 d20 f32" PLAIN
    "row % p.group * (p.q_rows / AGI_CUDA_SCALE_ROWS)" "0")
plant(online.cuh "every tile of queries has the first queries" "h4 kv2 q12 k600 d20 f32" PLAIN
    "s.q_copy += block.first_query" "s.q_copy += 0")
plant(online.cuh "every tile of queries sees what the first one sees"
    "h4 kv2 q12 k600 d20 f32 causal align=bottom-right" PLAIN
    "s.high += block.first_query" "s.high += 0")
plant(online.cuh "every tile of queries has the window of the first one"
    "h4 kv2 q12 k600 d20 f32 window=540,9 align=bottom-right" PLAIN
    "s.low += block.first_query" "s.low += 0")
plant(views.cuh "all queries of a tile see what the first one sees"
    "h2 q16 k600 d20 f32 causal align=bottom-right" PLAIN
    "has_pairs_as_rows<Map> ? r / group : r" "has_pairs_as_rows<Map> ? 0 : r")
plant(views.cuh "the last query of a tile is not asked what it hides"
    "h2 q16 k600 d20 f32 window=524,9 align=bottom-right" PLAIN
    "has_pairs_as_rows<Map> ? s.n_q / v.group : s.n_q" "has_pairs_as_rows<Map> ? min(s.n_q, 1) : s.n_q")
plant(stream.cuh "the last tile of the last query is not visited" "h2 q16 k577 d20 f32 causal align=bottom-right" PLAIN
    "PAIRS ? last / p.group : last" "PAIRS ? 0 : last")
plant(online.cuh "the last tile of a split is not visited" "h2 q4 k1100 d20 f32" PLAIN
    "min(at.from + (int)AGI_CUDA_SPLIT, s.n_k)" "min(at.from + (int)AGI_CUDA_SPLIT - 64, s.n_k)")
plant(online.cuh "the splits of all heads of a group are the first one's" "h4 kv2 q5 k600 d20 f32" PLAIN
    "at.x.h + row % p.group" "at.x.h")
plant(common.cu "the splits of all queries are joined into the first row" "h2 q4 k600 d20 f32" PLAIN
    "x.s.q0 + query" "x.s.q0")
plant(common.cu "queries after the end of a sequence are joined" "b3 h2 q9 k600 d20 f32" LENGTHS
    "query < x.s.n_q" "x.s.n_q >= 0")

# ---- Tails and sums, in common.cu, which includes features.cuh ----
plant(common.cu "the first row after the last sequence is not written" "b3 h1 q90 k90 d20 f32 packed=200,210" PLAIN
    "clamp_row(p.a.k_packed[p.B], p.kv_total)" "clamp_row(p.a.k_packed[p.B], p.kv_total) + 1")
plant(common.cu "the gradient of a sink has the other sign" "h2 q70 k90 d20 f32 sink" PLAIN
    "-share * r.D" "share * r.D")

# The switch, for every file that has one.
foreach(file features.cuh views.cuh stream.cuh)
    file(READ ${TO}/cuda/kernels/${file} text)
    string(REPLACE "#pragma once\n" "#pragma once\nextern \"C\" int planted_fault;\n" text "${text}")
    file(WRITE ${TO}/cuda/kernels/${file} "${text}")
endforeach()
file(WRITE ${TO}/planted_faults.c "/* Made by tests/cuda/plant.cmake. */\n#include \"planted.h\"\n\n"
    "const struct planted planted[] = {\n${rows}};\nconst int n_planted = ${faults};\n")
