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

/* Which command is called by whom, by bits of an input's first byte. */
enum { PUT_BY_CLIENT, ADD_BY_CLIENT, ADD_BY_PRIMARY, ADD_BY_FILE };
enum { NO_STREAM = 4, OTHER_TYPE, LATER_ID, TWO_ENTRIES };

/* What is wrong with the arguments, by the high four bits of an input's second byte; nothing for the other values. The
   other function is wrong for KORVET.PUT only. */
enum { TIMESTAMPS_TWO = 12, TIMESTAMPS_EMPTY, OTHER_FUNCTION, WRONG_ARITY };

/* The input that is being run. */
static struct {
    int caller, stream, odd;
    String *arguments[6];
} run;

static Context context = {find_stub, 0};

static void load_module(void)
{
    if (add_handler)
        return;
    context.flags = IN_CLUSTER;
    PROMISE(RedisModule_OnLoad(&context, NULL, 0) == API_OK && filter, "the module loads");
    put_handler(&context, NULL, 1);
    PROMISE(server.number == MODULE_VERSION, "KORVET.PUT without arguments");
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
    server.replies = 0;
    server.calls = server.xadds = server.adds = server.lacking = 0;
    server.reply_size = 0;
    server.reply[0] = 0;
    server.entries_size = 0;
    server.peak_bytes = server.live_bytes;
}

/* Whether something is wrong with the arguments. */
static int is_malformed(void)
{
    return run.odd >= TIMESTAMPS_TWO && (run.odd != OTHER_FUNCTION || run.caller == PUT_BY_CLIENT);
}

/* What the module promises for every input. */
static void check_promises(const uint8_t *batch, size_t size)
{
    int refused = server.reply[0] == '-';
    PROMISE(server.replies == 1 && server.lacking == 0 && !server.key.open, "one whole reply, and a closed key");
    PROMISE(server.live_bytes == 0, "all memory is freed");
    PROMISE(server.peak_bytes <= 2 * size + FREE_BYTES, "no more memory than the batch needs");
    PROMISE(server.adds == (server.key.added > 0), "the file gets the batch if anything was added");
    PROMISE(server.calls ? server.calls == server.adds && !server.xadds : server.xadds == server.key.added,
        "replicas get one call, or each entry");
    if (!refused)
        PROMISE(size >= BATCH_HEADER && server.key.added == (long)int32_at(batch + RECORD_COUNT_AT), "all records");
    else if (run.stream != TWO_ENTRIES)
        PROMISE(server.key.added == 0, "a refused batch adds nothing");
    if (run.caller == ADD_BY_CLIENT || run.stream == OTHER_TYPE || run.stream == LATER_ID || is_malformed())
        PROMISE(refused, "refused because of the caller, the stream or the arguments");
}

/* A command of this name shows that a slot moves if it is CLUSTER. */
static void check_filter(const uint8_t *bytes, size_t size)
{
    FilterContext called = {{stub_CreateString(NULL, (const char *)bytes, size), string_of("SyncSlots")}, 2};
    char name[8] = {0};
    size_t i;
    for (i = 0; i < size && i < sizeof name - 1; i++)
        name[i] = (char)(bytes[i] >= 'A' && bytes[i] <= 'Z' ? bytes[i] + 32 : bytes[i]);
    filter(&called);
    PROMISE(moves_slots == (size == 7 && memcmp(name, "cluster", 7) == 0), "CLUSTER SYNCSLOTS is seen");
    moves_slots = 0;
    for (i = 0; i < 2; i++)
        stub_FreeString(NULL, called.arguments[i]);
}

static void free_strings(String **strings, int count)
{
    while (count > 0)
        stub_FreeString(NULL, strings[--count]);
}

static void run_input(const uint8_t *input, size_t size)
{
    const uint8_t *batch = input + INPUT_HEAD;
    size_t batch_size = size - INPUT_HEAD, live_bytes;
    int timestamps = input[0] & 1;
    if (batch_size < 8)
        check_filter(batch, batch_size);
    run.caller = input[0] >> 1 & 3;
    run.stream = input[0] >> 3 & 7;
    run.odd = input[1] >> 4;
    run.arguments[0] = string_of(run.caller == PUT_BY_CLIENT ? "KORVET.PUT" : "KORVET.ADD");
    run.arguments[1] = string_of("g");
    run.arguments[2] = string_of(positions[input[1] & 15]);
    run.arguments[3] = string_of(run.odd == TIMESTAMPS_TWO ? "2"
            : run.odd == TIMESTAMPS_EMPTY                  ? ""
            : timestamps                                   ? "1"
                                                           : "0");
    run.arguments[4] = string_of(run.odd == OTHER_FUNCTION ? "korvet_append" : "korvet_unpack_x");
    run.arguments[5] = stub_CreateString(NULL, (const char *)batch, batch_size);
    live_bytes = server.live_bytes;
    server.live_bytes = 0;
    context.flags = run.caller == ADD_BY_PRIMARY ? FROM_PRIMARY : run.caller == ADD_BY_FILE ? LOADING : 0;
    prepare(run.stream);
    (run.caller == PUT_BY_CLIENT ? put_handler : add_handler)(&context, run.arguments, run.odd == WRONG_ARITY ? 5 : 6);
    check_promises(batch, batch_size);
    server.live_bytes = live_bytes;
    free_strings(run.arguments, 6);
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
                    run.caller, run.stream, run.odd));
    put(server.reply, server.reply_size);
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
