/* CRC32C (Castagnoli, reflected): the SSE4.2 instruction if the CPU has it, else eight tables.
   The tables are computed once at import, before another thread can call a function here.

   The instruction has a latency of three cycles, and one can start in each cycle. So three lanes of the data are
   computed at once, and their CRCs are combined. */
#ifndef KORVET_CRC32C_H
#define KORVET_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Bytes of a lane: long lanes cost less to combine, short ones leave fewer bytes over. */
#define KORVET_CRC32C_LONG 1024
#define KORVET_CRC32C_SHORT 128

static uint32_t korvet_crc32c_tables[8][256];
/* The CRC after a lane of zeros, for each byte of the CRC before it. */
static uint32_t korvet_crc32c_after_long[4][256];
static uint32_t korvet_crc32c_after_short[4][256];

static uint32_t korvet_crc32c_followed(const uint32_t after[4][256], uint32_t crc)
{
    return after[0][crc & 255] ^ after[1][(crc >> 8) & 255] ^ after[2][(crc >> 16) & 255]
        ^ after[3][crc >> 24];
}

static void korvet_crc32c_prepare_followed(uint32_t after[4][256], size_t zeros)
{
    uint32_t bit, byte, crc;
    size_t done;
    int place;
    /* The CRC is linear: a byte's CRC is that of its highest bit, XOR that of its other bits. */
    for (place = 0; place < 4; place++) {
        after[place][0] = 0;
        for (bit = 1; bit < 256; bit <<= 1) {
            crc = bit << 8 * place;
            for (done = 0; done < zeros; done++)
                crc = (crc >> 8) ^ korvet_crc32c_tables[0][crc & 255];
            for (byte = 0; byte < bit; byte++)
                after[place][bit + byte] = after[place][byte] ^ crc;
        }
    }
}

static void korvet_crc32c_prepare(void)
{
    uint32_t byte, value;
    int bit, table;
    for (byte = 0; byte < 256; byte++) {
        value = byte;
        for (bit = 0; bit < 8; bit++)
            value = (value & 1) ? (value >> 1) ^ 0x82F63B78u : value >> 1;
        korvet_crc32c_tables[0][byte] = value;
    }
    for (table = 1; table < 8; table++)
        for (byte = 0; byte < 256; byte++) {
            value = korvet_crc32c_tables[table - 1][byte];
            korvet_crc32c_tables[table][byte] = (value >> 8) ^ korvet_crc32c_tables[0][value & 255];
        }
    korvet_crc32c_prepare_followed(korvet_crc32c_after_long, KORVET_CRC32C_LONG);
    korvet_crc32c_prepare_followed(korvet_crc32c_after_short, KORVET_CRC32C_SHORT);
}

static uint32_t korvet_crc32c_by_tables(uint32_t crc, const unsigned char *data, size_t size)
{
    const uint32_t (*t)[256] = (const uint32_t (*)[256])korvet_crc32c_tables;
    for (; size >= 8; size -= 8, data += 8) {
        crc ^= (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
        crc = t[7][crc & 255] ^ t[6][(crc >> 8) & 255] ^ t[5][(crc >> 16) & 255] ^ t[4][crc >> 24]
            ^ t[3][data[4]] ^ t[2][data[5]] ^ t[1][data[6]] ^ t[0][data[7]];
    }
    for (; size; size--, data++)
        crc = (crc >> 8) ^ t[0][(crc ^ *data) & 255];
    return crc;
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <nmmintrin.h>
#define KORVET_CRC32C_SSE42 1

__attribute__((target("sse4.2")))
static inline uint64_t korvet_crc32c_word(uint64_t crc, const unsigned char *data)
{
    uint64_t word;
    memcpy(&word, data, 8);
    return _mm_crc32_u64(crc, word);
}

__attribute__((target("sse4.2")))
static inline uint32_t korvet_crc32c_of_lanes(
    uint32_t crc, const unsigned char *data, size_t lane, const uint32_t after[4][256])
{
    uint64_t first = crc, second = 0, third = 0;
    size_t at;
    for (at = 0; at < lane; at += 8) {
        first = korvet_crc32c_word(first, data + at);
        second = korvet_crc32c_word(second, data + lane + at);
        third = korvet_crc32c_word(third, data + 2 * lane + at);
    }
    crc = korvet_crc32c_followed(after, (uint32_t)first) ^ (uint32_t)second;
    return korvet_crc32c_followed(after, crc) ^ (uint32_t)third;
}

__attribute__((target("sse4.2")))
static uint32_t korvet_crc32c_by_cpu(uint32_t crc, const unsigned char *data, size_t size)
{
    const size_t longs = 3 * KORVET_CRC32C_LONG, shorts = 3 * KORVET_CRC32C_SHORT;
    uint64_t wide;
    for (; size >= longs; size -= longs, data += longs)
        crc = korvet_crc32c_of_lanes(crc, data, KORVET_CRC32C_LONG, korvet_crc32c_after_long);
    for (; size >= shorts; size -= shorts, data += shorts)
        crc = korvet_crc32c_of_lanes(crc, data, KORVET_CRC32C_SHORT, korvet_crc32c_after_short);
    wide = crc;
    for (; size >= 8; size -= 8, data += 8)
        wide = korvet_crc32c_word(wide, data);
    crc = (uint32_t)wide;
    for (; size; size--, data++)
        crc = _mm_crc32_u8(crc, *data);
    return crc;
}
#endif

static uint32_t korvet_crc32c(const unsigned char *data, size_t size)
{
#ifdef KORVET_CRC32C_SSE42
    if (__builtin_cpu_supports("sse4.2"))
        return ~korvet_crc32c_by_cpu(~(uint32_t)0, data, size);
#endif
    return ~korvet_crc32c_by_tables(~(uint32_t)0, data, size);
}

/* For tests: the tables on a machine whose CPU has the instruction. */
static uint32_t korvet_crc32c_portable(const unsigned char *data, size_t size)
{
    return ~korvet_crc32c_by_tables(~(uint32_t)0, data, size);
}

#endif
