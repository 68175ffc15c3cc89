/* Reads a topic from offset 0, follows it with one Fetch v12 in flight, and counts records.
 *
 *   fetch ADDRESS TOPIC [--partitions 1] [--records 0] [--seconds 10] [--partition-bytes 1048576]
 *
 * Ends after this number of records or seconds. */
#include "common.h"
#include "fetching.h"

int main(int argc, char **argv) {
    if (argc < 3)
        die("usage: fetch ADDRESS TOPIC [options]");
    uint32_t partitions = option(argc, argv, "--partitions", 1);
    uint64_t wanted = option(argc, argv, "--records", 0), requests = 0;
    struct reader reader;
    open_reader(&reader, argv[1], argv[2], 0, partitions, option(argc, argv, "--partition-bytes", 1 << 20));
    double cpu = own_cpu_seconds();
    int64_t began = now_ns(), ends = began + (int64_t)(option(argc, argv, "--seconds", 10) * 1e9), last = began;
    while (now_ns() < ends && (!wanted || reader.records < wanted)) {
        uint64_t before = reader.records;
        ask(&reader);
        while (!take_answer(&reader, NULL, NULL))
            wait_readable(reader.fd);
        requests++;
        if (reader.records > before)
            last = now_ns();
    }
    if (reader.records < wanted)
        die("%llu of %llu records within the time", (unsigned long long)reader.records, (unsigned long long)wanted);
    printf("{\"records\": %llu, \"requests\": %llu, \"bytes\": %llu, \"seconds\": %.6f, \"cpu_s\": %.6f}\n",
           (unsigned long long)reader.records, (unsigned long long)requests, (unsigned long long)reader.bytes,
           (last - began) / 1e9, own_cpu_seconds() - cpu);
    return 0;
}
