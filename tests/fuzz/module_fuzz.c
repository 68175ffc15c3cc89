/* The server module under sanitizers, without a server.

   With libFuzzer (-fsanitize=fuzzer) it looks for inputs that reach new code. Without it (-DANSWERS) it is a program
   that reads inputs from its standard input, and writes them and their results to standard output:

     PROGRAM replay            the result of each input
     PROGRAM mutate COUNT SEED the results of COUNT changed inputs

   Everything is a size (32 bits, as the machine has it) and so many bytes. A result is the input, the arguments that
   it chose (entry ID, timestamps, caller, stream, malformed argument), the reply, and the entries as XADD commands.
   tests/fuzz/oracle.py compares them with the kernel's. */
#include "korvet_module.c"

#include "server_stub.h"

#include "mutator.h"

#include <limits.h>

/* Memory that a batch may take beyond twice its size: strings of an entry with the most headers. */
#define FREE_BYTES ((size_t)512 << 10)

/* IDs of the first record, by the low four bits of an input's second byte; the last ones are malformed. */
static const char *const positions[16] = {"1795546653000-0", "1795546653000-1020", "1795546653000-1023",
    "1700000000000-5", "1-0", "0-1", "0-0", "1000", "9007199254740991-1023", "9007199254740991-1000",
    "9007199254740990-1020", "9007199254740992-0", "1-1024", "18446744073709551615-0", "-1-0", "x"};

/* How the command is called, by bits of an input's first byte. */
enum { BY_CLIENT, BY_CLIENT_TOO_LATE, BY_PRIMARY, BY_FILE };
enum { NO_STREAM = 4, OTHER_TYPE, LATER_ID, TWO_ENTRIES };

static Context context = {find_stub, 0};

static long long replicas_of_module(void)
{
    server.replies = server.numbers_used = 0;
    replicas_handler(&context, NULL, 1);
    PROMISE(server.numbers_used == 2 && server.numbers[0] == MODULE_VERSION, "KORVET.REPLICAS");
    return server.numbers[1];
}

static void load_module(void)
{
    if (!add_handler)
        PROMISE(RedisModule_OnLoad(&context, NULL, 0) == API_OK && filter, "the module loads");
}

static String *string_of(const char *text)
{
    return stub_CreateString(NULL, text, strlen(text));
}

static void prepare(int stream)
{
    server.key = (Key){stream == NO_STREAM ? TYPE_EMPTY : stream == OTHER_TYPE ? 1 : TYPE_STREAM, 0, {0, 0}, 0,
        stream == TWO_ENTRIES ? 2 : LONG_MAX};
    if (stream == LATER_ID)
        server.key.last = (EntryId){UINT64_MAX, UINT64_MAX};
    server.replies = server.replicated = 0;
    server.reply[0] = 0;
    server.entries_size = 0;
    server.peak_bytes = server.live_bytes;
}

/* What the module promises for every input. */
static void check_promises(const uint8_t *batch, size_t size, int caller, int stream)
{
    int refused = server.reply[0] == '-';
    PROMISE(server.replies == 1 && !server.key.open, "one reply, and a closed key");
    PROMISE(server.live_bytes == 0, "all memory is freed");
    PROMISE(server.peak_bytes <= 2 * size + FREE_BYTES, "no more memory than the batch needs");
    PROMISE(server.replicated == (server.key.added > 0), "replicated if anything was added");
    if (!refused)
        PROMISE(size >= BATCH_HEADER && server.key.added == (long)int32_at(batch + RECORD_COUNT_AT), "all records");
    else if (stream != TWO_ENTRIES)
        PROMISE(server.key.added == 0, "a refused batch adds nothing");
    if (caller == BY_CLIENT_TOO_LATE || stream == NO_STREAM || stream == OTHER_TYPE || stream == LATER_ID)
        PROMISE(refused, "refused because of the caller or the stream");
}

/* A command of this name changes the version if it is a replica's. PSYNC from an offset that KORVET.ADD may follow asks
   for all data. */
static void check_filter(const uint8_t *bytes, size_t size)
{
    long long before = replicas_of_module();
    FilterContext called = {{stub_CreateString(NULL, (const char *)bytes, size), string_of("id"), string_of("50")}};
    char name[8] = {0};
    int is_psync, all_data;
    size_t i;
    for (i = 0; i < size && i < sizeof name - 1; i++)
        name[i] = (char)(bytes[i] >= 'A' && bytes[i] <= 'Z' ? bytes[i] + 32 : bytes[i]);
    filter(&called);
    is_psync = size == 5 && memcmp(name, "psync", 5) == 0;
    PROMISE((replicas_of_module() != before) == (is_psync || (size == 4 && memcmp(name, "sync", 4) == 0)),
        "SYNC and PSYNC change the version");
    all_data = called.arguments[2]->size == 2 && memcmp(called.arguments[2]->bytes, "-1", 2) == 0;
    PROMISE(all_data == (is_psync && added_until >= REPLICATION_OFFSET), "PSYNC asks for all data after KORVET.ADD");
    for (i = 0; i < 3; i++)
        stub_FreeString(NULL, called.arguments[i]);
}

static void run_input(const uint8_t *input, size_t size)
{
    const uint8_t *batch = input + INPUT_HEAD;
    size_t batch_size = size - INPUT_HEAD;
    int timestamps = input[0] & 1, caller = input[0] >> 1 & 3, stream = input[0] >> 3 & 7, odd = input[1] >> 4;
    char version[32];
    String *arguments[6];
    int i;
    if (batch_size < 8)
        check_filter(batch, batch_size);
    snprintf(version, sizeof version, "%lld", replicas_of_module() + (caller == BY_CLIENT ? 0 : 1));
    arguments[0] = string_of("KORVET.ADD");
    arguments[1] = string_of("g");
    arguments[2] = string_of(positions[input[1] & 15]);
    arguments[3] = string_of(odd == 12 ? "2" : odd == 13 ? "" : timestamps ? "1" : "0");
    arguments[4] = string_of(odd == 14 ? "1x" : version);
    arguments[5] = stub_CreateString(NULL, (const char *)batch, batch_size);
    size_t live_bytes = server.live_bytes;
    server.live_bytes = 0;
    context.flags = caller == BY_PRIMARY ? FROM_PRIMARY : caller == BY_FILE ? LOADING : 0;
    prepare(stream);
    add_handler(&context, arguments, odd == 15 ? 5 : 6);
    check_promises(batch, batch_size, caller, stream);
    PROMISE(odd < 12 || server.reply[0] == '-', "malformed arguments are refused");
    server.live_bytes = live_bytes;
    for (i = 0; i < 6; i++)
        stub_FreeString(NULL, arguments[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    load_module();
    if (size >= INPUT_HEAD)
        run_input(data, size);
    return 0;
}

#ifdef ANSWERS
#define MOST_INPUTS 65536

static uint8_t *inputs[MOST_INPUTS];
static uint32_t sizes[MOST_INPUTS];

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size)
{
    static const uint8_t bytes[] = {0, 1, 2, 3, 63, 64, 127, 128, 129, 254, 255};
    size_t at = size ? below(size) : 0, length = 1 + below(8);
    switch (below(5)) {
    case 0:
        return at ? at : size;
    case 1:
        if (size + length > max_size)
            return size;
        memmove(data + at + length, data + at, size - at);
        return size + length;
    case 2:
        length = length < size - at ? length : size - at;
        memmove(data + at, data + at + length, size - at - length);
        return size - length;
    case 3:
        if (size)
            data[at] ^= (uint8_t)(1 << below(8));
        return size;
    default:
        for (; size && length > 4; length--)
            data[below(size)] = below(2) ? bytes[below(sizeof bytes)] : (uint8_t)random_number();
        return size;
    }
}

static void put(const void *bytes, size_t size)
{
    uint32_t head = (uint32_t)size;
    PROMISE(fwrite(&head, sizeof head, 1, stdout) == 1 && fwrite(bytes, 1, size, stdout) == size, "output");
}

static void answer(const uint8_t *input, size_t size)
{
    char chosen[64];
    run_input(input, size);
    put(input, size);
    put(chosen, (size_t)snprintf(chosen, sizeof chosen, "%s %d %d %d %d", positions[input[1] & 15], input[0] & 1,
                    input[0] >> 1 & 3, input[0] >> 3 & 7, input[1] >> 4));
    put(server.reply, strlen(server.reply));
    put(server.entries, server.entries_size);
}

static size_t read_inputs(void)
{
    size_t count = 0;
    while (count < MOST_INPUTS && fread(&sizes[count], sizeof *sizes, 1, stdin) == 1) {
        inputs[count] = malloc(sizes[count] + (size_t)1);
        PROMISE(inputs[count] && fread(inputs[count], 1, sizes[count], stdin) == sizes[count], "a whole input");
        PROMISE(sizes[count] >= INPUT_HEAD && sizes[count] <= LARGEST_BATCH, "the size of an input");
        count++;
    }
    return count;
}

int main(int count, char **arguments)
{
    size_t given, i;
    load_module();
    server.recorded = 1;
    server.entries = malloc(1);
    given = read_inputs();
    if (count == 2 && strcmp(arguments[1], "replay") == 0) {
        for (i = 0; i < given; i++)
            answer(inputs[i], sizes[i]);
    } else {
        static uint8_t input[LARGEST_BATCH];
        long rounds = count == 4 ? atol(arguments[2]) : 0;
        PROMISE(given > 0 && rounds > 0, "inputs and a number of rounds");
        random_state += (uint64_t)atol(arguments[3]);
        for (; rounds > 0; rounds--) {
            size_t chosen = below(given), size = sizes[chosen];
            memcpy(input, inputs[chosen], size);
            do
                size = LLVMFuzzerCustomMutator(input, size, sizeof input, (unsigned int)random_number());
            while (below(2));
            if (size >= INPUT_HEAD)
                answer(input, size);
        }
    }
    for (i = 0; i < given; i++)
        free(inputs[i]);
    free(server.entries);
    return fflush(stdout) == 0 ? 0 : 1;
}
#endif
