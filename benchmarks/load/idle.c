/* Holds idle connections until standard input ends.
 *
 *   idle ADDRESS CONNECTIONS [--topic NAME --partitions 1]
 *
 * With a topic, each connection is a consumer of one partition that waits at offset 0, one Fetch at a time. Without
 * a topic, the connections send nothing. Prints "ready" when all are connected. */
#include "common.h"
#include "fetching.h"

#include <sys/epoll.h>

#define MOST_EVENTS 256

int main(int argc, char **argv) {
    if (argc < 3)
        die("usage: idle ADDRESS CONNECTIONS [options]");
    const char *topic = text_option(argc, argv, "--topic", NULL);
    uint32_t count = atoi(argv[2]), partitions = option(argc, argv, "--partitions", 1);
    struct reader *readers = reserve(count * sizeof *readers);
    int polled = epoll_create1(0);
    for (uint32_t i = 0; i < count; i++) {
        readers[i].fd = connect_to(argv[1]);
        struct epoll_event event = {EPOLLIN, {.u32 = i}};
        epoll_ctl(polled, EPOLL_CTL_ADD, readers[i].fd, &event);
        if (topic) {
            int fd = readers[i].fd;
            prepare_reader(&readers[i], topic, i % partitions, 1, 1 << 20);
            readers[i].fd = fd;
            ask(&readers[i]);
        }
    }
    struct epoll_event input = {EPOLLIN, {.u32 = count}};
    epoll_ctl(polled, EPOLL_CTL_ADD, STDIN_FILENO, &input);
    puts("ready");
    fflush(stdout);
    for (;;) {
        struct epoll_event events[MOST_EVENTS];
        int ready = epoll_wait(polled, events, MOST_EVENTS, -1);
        for (int i = 0; i < ready; i++) {
            if (events[i].data.u32 == count)
                return 0;
            struct reader *reader = &readers[events[i].data.u32];
            if (!topic)
                receive(reader->fd, &reader->in);
            else if (take_answer(reader, NULL, NULL))
                ask(reader);
        }
    }
}
