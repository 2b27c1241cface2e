"""Our kernels, in Triton: attention over short rows (`short_rows.py` calls it), and an update of
all weights (`update.py`).

Flash attention is made for long rows: it gives each row of ninety tokens a tile of its own, most
of it empty, and its backward pass copies what heads share. Here a tile is a piece of the *line*,
wherever rows begin in it; each token says itself what it sees. Heads that share keys add up their
gradients in one place and in one order, so the result is the same bits every time.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1.0e30)


@triton.jit
def _tile(base, places, stride, unit, there):  # type: ignore[no-untyped-def]
    return tl.load(base + places[:, None] * stride + unit[None, :], mask=there, other=0.0)


@triton.jit
def _attended(query, key, value, seen, best, total, mixed, scale):  # type: ignore[no-untyped-def]
    """One more tile of keys in a running softmax, in powers of two."""
    scores = tl.where(seen, tl.dot(query, tl.trans(key)) * scale, LOWEST)
    higher = tl.maximum(best, tl.max(scores, 1))
    weights = tl.exp2(scores - higher[:, None])
    fade = tl.exp2(best - higher)
    mixed = mixed * fade[:, None] + tl.dot(weights.to(value.dtype), value)
    return higher, total * fade + tl.sum(weights, 1), mixed


@triton.jit
def forward(  # type: ignore[no-untyped-def]
    q, k, v, out, lse, starts, froms, tos, scale, tokens,
    q_head, q_token, k_head, k_token, v_head, v_token,
    heads: tl.constexpr, repeats: tl.constexpr, dim: tl.constexpr,
    wide: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, stems: tl.constexpr,
):  # fmt: skip
    block, head = tl.program_id(0), tl.program_id(1)
    row = block * rows + tl.arange(0, rows)
    unit = tl.arange(0, wide)
    inside = row < tokens
    filled = inside[:, None] & (unit < dim)[None, :]
    start = tl.load(starts + row, mask=inside, other=tokens)
    query = _tile(q + head * q_head, row, q_token, unit, filled)
    keys, values = k + (head // repeats) * k_head, v + (head // repeats) * v_head
    best = tl.full([rows], LOWEST, tl.float32)
    total = tl.zeros([rows], tl.float32)
    mixed = tl.zeros([rows, wide], tl.float32)
    scale = scale * LOG2_E
    last = tl.minimum((block + 1) * rows, tokens)
    for first in range(tl.min(start) // columns * columns, last, columns):
        column = first + tl.arange(0, columns)
        there = (column < tokens)[:, None] & (unit < dim)[None, :]
        key = _tile(keys, column, k_token, unit, there)
        value = _tile(values, column, v_token, unit, there)
        seen = (column[None, :] >= start[:, None]) & (column[None, :] <= row[:, None])
        best, total, mixed = _attended(query, key, value, seen, best, total, mixed, scale)
    if stems:
        begin = tl.load(froms + row, mask=inside, other=tokens)
        end = tl.load(tos + row, mask=inside, other=0)
        for first in range(tl.min(begin) // columns * columns, tl.max(end), columns):
            column = first + tl.arange(0, columns)
            there = (column < tokens)[:, None] & (unit < dim)[None, :]
            key = _tile(keys, column, k_token, unit, there)
            value = _tile(values, column, v_token, unit, there)
            seen = (column[None, :] >= begin[:, None]) & (column[None, :] < end[:, None])
            best, total, mixed = _attended(query, key, value, seen, best, total, mixed, scale)
    mixed = mixed / total[:, None]
    place = out + (row[:, None] * heads + head) * dim + unit[None, :]
    tl.store(place, mixed.to(out.dtype.element_ty), mask=filled)
    tl.store(lse + head * tokens + row, (best + tl.log2(total)) / LOG2_E, mask=inside)


@triton.jit
def backward_queries(  # type: ignore[no-untyped-def]
    q, k, v, out, slope, lse, delta, d_q, starts, scale, tokens,
    q_head, q_token, k_head, k_token, v_head, v_token, s_head, s_token,
    heads: tl.constexpr, repeats: tl.constexpr, dim: tl.constexpr,
    wide: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """Gradients of queries; `delta` is left for the keys."""
    block, head = tl.program_id(0), tl.program_id(1)
    row = block * rows + tl.arange(0, rows)
    unit = tl.arange(0, wide)
    inside = row < tokens
    filled = inside[:, None] & (unit < dim)[None, :]
    start = tl.load(starts + row, mask=inside, other=tokens)
    query = _tile(q + head * q_head, row, q_token, unit, filled)
    said = _tile(out + head * dim, row, heads * dim, unit, filled)
    down = _tile(slope + head * s_head, row, s_token, unit, filled)
    size = tl.load(lse + head * tokens + row, mask=inside, other=0.0) * LOG2_E
    offset = tl.sum(said.to(tl.float32) * down.to(tl.float32), 1)
    tl.store(delta + head * tokens + row, offset, mask=inside)
    keys, values = k + (head // repeats) * k_head, v + (head // repeats) * v_head
    summed = tl.zeros([rows, wide], tl.float32)
    last = tl.minimum((block + 1) * rows, tokens)
    for first in range(tl.min(start) // columns * columns, last, columns):
        column = first + tl.arange(0, columns)
        there = (column < tokens)[:, None] & (unit < dim)[None, :]
        key = _tile(keys, column, k_token, unit, there)
        value = _tile(values, column, v_token, unit, there)
        seen = (column[None, :] >= start[:, None]) & (column[None, :] <= row[:, None])
        weights = tl.exp2(tl.dot(query, tl.trans(key)) * (scale * LOG2_E) - size[:, None])
        weights = tl.where(seen, weights, 0.0)
        change = weights * (tl.dot(down, tl.trans(value)) - offset[:, None])
        summed += tl.dot(change.to(key.dtype), key)
    place = d_q + head * q_head + row[:, None] * q_token + unit[None, :]
    tl.store(place, (summed * scale).to(d_q.dtype.element_ty), mask=filled)


@triton.jit
def backward_keys(  # type: ignore[no-untyped-def]
    q, k, v, slope, lse, delta, d_k, d_v, starts, ends, scale, tokens,
    q_head, q_token, k_head, k_token, v_head, v_token, s_head, s_token,
    heads: tl.constexpr, repeats: tl.constexpr, dim: tl.constexpr,
    wide: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """Gradients of keys and values, summed over the heads that share them."""
    block, head = tl.program_id(0), tl.program_id(1)
    column = block * columns + tl.arange(0, columns)
    unit = tl.arange(0, wide)
    inside = column < tokens
    filled = inside[:, None] & (unit < dim)[None, :]
    last = tl.max(tl.load(ends + column, mask=inside, other=0))
    key = _tile(k + head * k_head, column, k_token, unit, filled)
    value = _tile(v + head * v_head, column, v_token, unit, filled)
    sum_k = tl.zeros([columns, wide], tl.float32)
    sum_v = tl.zeros([columns, wide], tl.float32)
    for asking in range(head * repeats, (head + 1) * repeats):
        for first in range(block * columns // rows * rows, last, rows):
            row = first + tl.arange(0, rows)
            there = row < tokens
            held = there[:, None] & (unit < dim)[None, :]
            query = _tile(q + asking * q_head, row, q_token, unit, held)
            down = _tile(slope + asking * s_head, row, s_token, unit, held)
            size = tl.load(lse + asking * tokens + row, mask=there, other=0.0) * LOG2_E
            offset = tl.load(delta + asking * tokens + row, mask=there, other=0.0)
            start = tl.load(starts + row, mask=there, other=tokens)
            seen = (column[:, None] >= start[None, :]) & (column[:, None] <= row[None, :])
            weights = tl.exp2(tl.dot(key, tl.trans(query)) * (scale * LOG2_E) - size[None, :])
            weights = tl.where(seen, weights, 0.0)
            sum_v += tl.dot(weights.to(down.dtype), down)
            change = weights * (tl.dot(value, tl.trans(down)) - offset[None, :])
            sum_k += tl.dot(change.to(query.dtype), query)
    place = d_k + head * k_head + column[:, None] * k_token + unit[None, :]
    tl.store(place, (sum_k * scale).to(d_k.dtype.element_ty), mask=filled)
    place = d_v + head * v_head + column[:, None] * v_token + unit[None, :]
    tl.store(place, sum_v.to(d_v.dtype.element_ty), mask=filled)


@triton.jit
def step(  # type: ignore[no-untyped-def]
    q, k, v, keys, values, out, lse, starts, lengths, scale, tokens,
    q_head, q_token, k_head, k_token, v_head, v_token,
    heads: tl.constexpr, repeats: tl.constexpr, dim: tl.constexpr, wide: tl.constexpr,
    ahead: tl.constexpr, fresh: tl.constexpr, asking: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """Keep a row's new keys and values in the slots after those that it has filled, and attend over
    all of them: each of its `ahead` tokens up to itself."""
    row, shared = tl.program_id(0), tl.program_id(1)
    kept = heads // repeats
    unit = tl.arange(0, wide)
    asks = tl.arange(0, asking)
    turn, head = asks // repeats, shared * repeats + asks % repeats
    token = row * ahead + turn
    filled = (turn < ahead)[:, None] & (unit < dim)[None, :]
    start = tl.load(starts + row)
    last = start + tl.load(lengths + row)
    place = q + head[:, None] * q_head + token[:, None] * q_token + unit[None, :]
    query = tl.load(place, mask=filled, other=0.0)
    scale = scale * LOG2_E
    slot = (last * kept + shared) * dim
    new_keys, new_values = k + shared * k_head, v + shared * v_head
    if ahead == 1:
        key = tl.load(new_keys + row * k_token + unit, mask=unit < dim, other=0.0)
        value = tl.load(new_values + row * v_token + unit, mask=unit < dim, other=0.0)
        tl.store(keys + slot + unit, key, mask=unit < dim)
        tl.store(values + slot + unit, value, mask=unit < dim)
        best = tl.sum(query.to(tl.float32) * key.to(tl.float32)[None, :], 1) * scale
        total = tl.full([asking], 1.0, tl.float32)
        mixed = tl.zeros([asking, wide], tl.float32) + value.to(tl.float32)[None, :]
    else:
        new = tl.arange(0, fresh)
        given = (new < ahead)[:, None] & (unit < dim)[None, :]
        key = _tile(new_keys, row * ahead + new, k_token, unit, given)
        value = _tile(new_values, row * ahead + new, v_token, unit, given)
        slots = slot + new[:, None] * kept * dim + unit[None, :]
        tl.store(keys + slots, key, mask=given)
        tl.store(values + slots, value, mask=given)
        sees = (new[None, :] <= turn[:, None]) & (new < ahead)[None, :]
        best = tl.full([asking], LOWEST, tl.float32)
        total = tl.zeros([asking], tl.float32)
        mixed = tl.zeros([asking, wide], tl.float32)
        best, total, mixed = _attended(query, key, value, sees, best, total, mixed, scale)
    for first in range(start, last, columns):
        column = first + tl.arange(0, columns)
        there = (column < last)[:, None] & (unit < dim)[None, :]
        places = (column[:, None] * kept + shared) * dim + unit[None, :]
        old_key = tl.load(keys + places, mask=there, other=0.0)
        old_value = tl.load(values + places, mask=there, other=0.0)
        seen = (column < last)[None, :] & (asks >= 0)[:, None]
        best, total, mixed = _attended(query, old_key, old_value, seen, best, total, mixed, scale)
    mixed = mixed / total[:, None]
    place = out + (token * heads + head)[:, None] * dim + unit[None, :]
    tl.store(place, mixed.to(out.dtype.element_ty), mask=filled)
    sums = (best + tl.log2(total)) / LOG2_E
    tl.store(lse + head * tokens + token, sums, mask=turn < ahead)


@triton.jit
def update(  # type: ignore[no-untyped-def]
    gradients, places, sizes, owners, turns, numbers, seed, bad, decay,
    tensors: tl.constexpr, beta_1: tl.constexpr, beta_2: tl.constexpr, epsilon: tl.constexpr,
    wide: tl.constexpr, halved: tl.constexpr, even: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """AdamW's step of one block of one weight; tables say where it lies with its moments."""
    owner = tl.load(owners + tl.program_id(0))
    source = tl.load(gradients + owner)
    if (source != 0) & (tl.load(bad) == 0):
        place = tl.load(turns + tl.program_id(0)) * block + tl.arange(0, block)
        there = place < tl.multiple_of(tl.load(sizes + owner), even)
        kind = tl.float32 if wide else tl.bfloat16
        kept = tl.bfloat16 if halved else tl.float32
        slopes = tl.multiple_of(source.to(tl.pointer_type(kind)), even) + place
        masters = _places(places, owner, even, tl.float32) + place
        means = _places(places + tensors, owner, even, kept) + place
        squares = _places(places + 2 * tensors, owner, even, kept) + place
        working = _places(places + 3 * tensors, owner, even, tl.bfloat16) + place

        rate, stride = tl.load(numbers), tl.load(numbers + 1)
        second, shrink = tl.load(numbers + 2), tl.load(numbers + 3)
        slope = tl.load(slopes, mask=there, other=0.0).to(tl.float32) * shrink
        weight = tl.load(masters, mask=there, other=0.0)
        mean = tl.load(means, mask=there, other=0.0).to(tl.float32)
        square = tl.load(squares, mask=there, other=0.0).to(tl.float32)
        mean = beta_1 * mean + (1 - beta_1) * slope
        square = beta_2 * square + (1 - beta_2) * slope * slope
        weight -= rate * decay * weight
        weight -= stride * mean / (tl.sqrt(square) / second + epsilon)
        tl.store(masters, weight, mask=there)
        tl.store(working, weight.to(tl.bfloat16), mask=there)
        if halved:
            noise = tl.randint(tl.load(seed) + owner, place.to(tl.int32))
            mean = _rounded(mean, noise)
            square = _rounded(square, noise >> 16)
        tl.store(means, mean.to(kept), mask=there)
        tl.store(squares, square.to(kept), mask=there)


@triton.jit
def _places(table, owner, even: tl.constexpr, kind: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.multiple_of(tl.load(table + owner).to(tl.pointer_type(kind)), even)


@triton.jit
def _rounded(numbers, noise):  # type: ignore[no-untyped-def]
    """To what bf16 can hold, up or down with the chances that keep the mean."""
    bits = numbers.to(tl.int32, bitcast=True) + (noise & 0xFFFF).to(tl.int32)
    return (bits & -65536).to(tl.float32, bitcast=True)
