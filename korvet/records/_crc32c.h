/* CRC32C (Castagnoli, reflected): the SSE4.2 instruction where the CPU has it, else eight tables.
   The tables are made once at import, before any other thread can call in. */
#ifndef KORVET_CRC32C_H
#define KORVET_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t korvet_crc32c_tables[8][256];

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
static uint32_t korvet_crc32c_by_cpu(uint32_t crc, const unsigned char *data, size_t size)
{
    uint64_t wide = crc, word;
    for (; size >= 8; size -= 8, data += 8) {
        memcpy(&word, data, 8);
        wide = _mm_crc32_u64(wide, word);
    }
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

/* For tests: the table path on a machine that would take the other one. */
static uint32_t korvet_crc32c_portable(const unsigned char *data, size_t size)
{
    return ~korvet_crc32c_by_tables(~(uint32_t)0, data, size);
}

#endif
