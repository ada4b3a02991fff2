"""XXH3 with 64 and 128 bits, no seed, in plain Python: the checksums of our files.

Written from the algorithm as xxHash 0.8 defines it (https://github.com/Cyan4973/xxHash,
doc/xxhash_spec.md and xxhash.h, BSD 2-Clause), where the names come from too.
"""

M32, M64 = 2**32 - 1, 2**64 - 1
P32_1, P32_2, P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
P64_1, P64_2, P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P64_4, P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")
SECRET_MIN = 136


def u32(b, at):
    return int.from_bytes(b[at:at + 4], "little")


def u64(b, at):
    return int.from_bytes(b[at:at + 8], "little")


def swap64(v):
    return int.from_bytes(v.to_bytes(8, "little"), "big")


def fold(a, b):
    p = a * b
    return (p ^ p >> 64) & M64


def rotl(v, n, bits):
    return (v << n | v >> bits - n) & (1 << bits) - 1


def avalanche64(h):
    h = (h ^ h >> 33) * P64_2 & M64
    h = (h ^ h >> 29) * P64_3 & M64
    return h ^ h >> 32


def avalanche(h):
    h = (h ^ h >> 37) * 0x165667919E3779F9 & M64
    return h ^ h >> 32


def mix16(b, at, s):
    return fold(u64(b, at) ^ u64(SECRET, s), u64(b, at + 8) ^ u64(SECRET, s + 8))


def mix32(acc, b, one, two, s):
    low = (acc[0] + mix16(b, one, s) & M64) ^ (u64(b, two) + u64(b, two + 8) & M64)
    high = (acc[1] + mix16(b, two, s + 16) & M64) ^ (u64(b, one) + u64(b, one + 8) & M64)
    return low, high


def long_accumulator(b):
    """The eight lanes of inputs above 240 bytes."""
    acc = [P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1]

    def stripe(at, s):
        for i in range(8):
            v = u64(b, at + 8 * i)
            k = v ^ u64(SECRET, s + 8 * i)
            acc[i ^ 1] = acc[i ^ 1] + v & M64
            acc[i] = acc[i] + (k & M32) * (k >> 32) & M64

    last = len(SECRET) - 64
    per_block = last // 8
    blocks = (len(b) - 1) // (64 * per_block)
    for n in range(blocks):
        for i in range(per_block):
            stripe((n * per_block + i) * 64, 8 * i)
        for i in range(8):
            a = acc[i] ^ acc[i] >> 47 ^ u64(SECRET, last + 8 * i)
            acc[i] = a * P32_1 & M64
    done = blocks * per_block * 64
    for i in range((len(b) - 1 - done) // 64):
        stripe(done + 64 * i, 8 * i)
    stripe(len(b) - 64, last - 7)
    return acc


def merge(acc, s, start):
    for i in range(4):
        start += fold(acc[2 * i] ^ u64(SECRET, s + 16 * i),
                      acc[2 * i + 1] ^ u64(SECRET, s + 16 * i + 8))
    return avalanche(start & M64)


def combined(b):
    n = len(b)
    return b[0] << 16 | b[n >> 1] << 24 | b[n - 1] | n << 8


def xxh3_64(b):
    n = len(b)
    if n == 0:
        return avalanche64(u64(SECRET, 56) ^ u64(SECRET, 64))
    if n <= 3:
        return avalanche64(combined(b) ^ u32(SECRET, 0) ^ u32(SECRET, 4))
    if n <= 8:
        h = u32(b, n - 4) + (u32(b, 0) << 32) ^ u64(SECRET, 8) ^ u64(SECRET, 16)
        h ^= rotl(h, 49, 64) ^ rotl(h, 24, 64)
        h = h * 0x9FB21C651E98DF25 & M64
        h = (h ^ (h >> 35) + n) * 0x9FB21C651E98DF25 & M64
        return h ^ h >> 28
    if n <= 16:
        low = u64(b, 0) ^ u64(SECRET, 24) ^ u64(SECRET, 32)
        high = u64(b, n - 8) ^ u64(SECRET, 40) ^ u64(SECRET, 48)
        return avalanche(n + swap64(low) + high + fold(low, high) & M64)
    acc = n * P64_1
    if n <= 128:
        for i in reversed(range((n - 1) // 32 + 1)):
            acc += mix16(b, 16 * i, 32 * i) + mix16(b, n - 16 * i - 16, 32 * i + 16)
        return avalanche(acc & M64)
    if n <= 240:
        for i in range(n // 16):
            if i == 8:
                acc = avalanche(acc & M64)
            acc += mix16(b, 16 * i, 16 * i if i < 8 else 16 * (i - 8) + 3)
        if n // 16 == 8:
            acc = avalanche(acc & M64)
        return avalanche(acc + mix16(b, n - 16, SECRET_MIN - 17) & M64)
    return merge(long_accumulator(b), 11, n * P64_1 & M64)


def short_128(b):
    """Low and high of inputs up to 16 bytes."""
    n = len(b)
    if n == 0:
        return (avalanche64(u64(SECRET, 64) ^ u64(SECRET, 72)),
                avalanche64(u64(SECRET, 80) ^ u64(SECRET, 88)))
    if n <= 3:
        low = combined(b)
        high = rotl(int.from_bytes(low.to_bytes(4, "little"), "big"), 13, 32)
        return (avalanche64(low ^ u32(SECRET, 0) ^ u32(SECRET, 4)),
                avalanche64(high ^ u32(SECRET, 8) ^ u32(SECRET, 12)))
    if n <= 8:
        keyed = u32(b, 0) + (u32(b, n - 4) << 32) ^ u64(SECRET, 16) ^ u64(SECRET, 24)
        p = keyed * (P64_1 + (n << 2))
        low, high = p & M64, p >> 64 & M64
        high = high + (low << 1) & M64
        low ^= high >> 3
        low = (low ^ low >> 35) * 0x9FB21C651E98DF25 & M64
        return low ^ low >> 28, avalanche(high)
    low = u64(b, 0) ^ u64(b, n - 8) ^ u64(SECRET, 32) ^ u64(SECRET, 40)
    p = low * P64_1
    high_in = u64(b, n - 8) ^ u64(SECRET, 48) ^ u64(SECRET, 56)
    low, high = (p & M64) + (n - 1 << 54) & M64, p >> 64
    high = high + high_in + (high_in & M32) * (P32_2 - 1) & M64
    low ^= swap64(high)
    p = low * P64_2
    return avalanche(p & M64), avalanche((p >> 64) + high * P64_2 & M64)


def xxh3_128(b):
    """Low and high."""
    n = len(b)
    if n <= 16:
        return short_128(b)
    if n > 240:
        acc = long_accumulator(b)
        return (merge(acc, 11, n * P64_1 & M64),
                merge(acc, len(SECRET) - 64 - 11, ~(n * P64_2) & M64))
    acc = (n * P64_1 & M64, 0)
    if n <= 128:
        for i in reversed(range((n - 1) // 32 + 1)):
            acc = mix32(acc, b, 16 * i, n - 16 * i - 16, 32 * i)
    else:
        for i in range(n // 32):
            if i == 4:
                acc = avalanche(acc[0]), avalanche(acc[1])
            acc = mix32(acc, b, 32 * i, 32 * i + 16, 32 * i if i < 4 else 32 * i - 125)
        if n // 32 == 4:
            acc = avalanche(acc[0]), avalanche(acc[1])
        acc = mix32(acc, b, n - 16, n - 32, SECRET_MIN - 33)
    low = avalanche(acc[0] + acc[1] & M64)
    high = avalanche(acc[0] * P64_1 + acc[1] * P64_4 + n * P64_2 & M64)
    return low, -high & M64


def hex_128(b):
    low, high = xxh3_128(b)
    return f"{high:016x}{low:016x}"
