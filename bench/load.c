/* Load one HTTP/1.1 server on the loopback and say how it did, as one JSON object on stdout.
 *
 * N keep-alive connections, one request in flight on each: the next one leaves when the answer is complete (a closed
 * loop, so latency is connections / rate; compare it only at equal connections).  Every answer is checked: status 200,
 * a Content-Length, and, with --expect-file, a body equal byte for byte.  An answer that fails a check, and a
 * connection that breaks, is an error; after MAX_ERRORS of them, or STALL_SECONDS without any answer, the run stops
 * and exits 1.  With --number-at no two requests are equal: the ten bytes there are the request's number.  With
 * --back-at the same ten bytes must be there in the answer's body, with --back-inverted each bit of them turned: an
 * answer that belongs to another request is then an error.
 *
 * With --on-command the connections are kept for many runs.  Each line on stdin, a number of requests, starts one: so
 * many are sent, all are answered, and one JSON object tells of this run alone, of which all is measured.  The first
 * error ends the program, as the end of stdin does.
 *
 * Time is CLOCK_MONOTONIC in nanoseconds, latency from before write() to the last byte of the answer.  Rate and
 * latency are of the time after --warmup; "completed" and "load_cpu_seconds" (this program's own CPU, which the
 * server may have to do without) are of the whole run.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum {
    HEAD_SPACE = 1 << 14,          /* bytes of the head of an answer */
    PART_SPACE = 1 << 20,          /* bytes of an answer that are read at a time */
    SHOWN_BYTES = 100,             /* of a body that is not the expected one */
    MICROSECONDS = 2 * 1000 * 1000, /* the histogram has one bucket each; longer latencies count in the last */
    MAX_ERRORS = 100,
    STALL_SECONDS = 10,
    NUMBER_DIGITS = 10,
};

typedef struct {
    int fd;
    int want_write;  /* whether epoll watches for room to write */
    size_t sent;     /* bytes of the request written so far */
    size_t head_got; /* bytes of the head of the answer read so far */
    int in_body;     /* whether the head is complete */
    size_t body;     /* bytes of the body */
    size_t body_got; /* of these, how many were read, and compared, so far */
    uint64_t started;
    char *head;      /* as far as it came without its end */
    char number[NUMBER_DIGITS]; /* of the request in flight */
    char wrong[SHOWN_BYTES + 1]; /* the part of the body that was not the expected one; empty if there was none */
} Connection;

static struct sockaddr_in target;
static char *request, *expected;
static size_t request_size, expected_size;
/* What came last, of one connection at a time.  With a buffer for each whole answer the load generator would read and
 * compare large ones from memory, not from the cache, and the server would lack that time. */
static char part[PART_SPACE + 1];
static size_t number_at; /* where in the request its ten-digit number belongs; 0: nowhere */
static size_t back_at = SIZE_MAX; /* where in the answer's body that number comes back; SIZE_MAX: nowhere */
static char back_turned; /* the bits that are turned in what comes back */
static int epoll_fd;
static uint32_t latencies[MICROSECONDS];
static uint64_t slowest, measured, completed, errors;
static uint64_t unsent; /* requests that may still be sent in this run */
static double cpu_before; /* this program's CPU when the run began */
static uint64_t last_answer;
static char first_error[200];

static void die(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    fprintf(stderr, "load: ");
    vfprintf(stderr, format, values);
    fprintf(stderr, "\n");
    exit(2);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double cpu_seconds(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static char *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        die("%s: %s", path, strerror(errno));
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*size + 1);
    if (!bytes || fread(bytes, 1, *size, file) != *size)
        die("%s: could not be read", path);
    fclose(file);
    return bytes;
}

static void count_error(const char *format, ...)
{
    if (errors++)
        return;
    va_list values;
    va_start(values, format);
    vsnprintf(first_error, sizeof first_error, format, values);
    va_end(values);
    for (char *c = first_error; *c; c++) /* it is printed inside a JSON string */
        if (*c == '"' || *c == '\\' || !isprint((unsigned char)*c))
            *c = ' ';
}

static void watch(Connection *c, int operation)
{
    struct epoll_event event = {.events = EPOLLIN | (c->want_write ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(epoll_fd, operation, c->fd, &event))
        die("epoll_ctl: %s", strerror(errno));
}

static void reopen(Connection *c);

/* Write what is left of the request, as much as there is room for.  All connections send the same bytes but for the
 * number: with copies of a large request the load generator would read its bytes from memory, not from the cache. */
static ssize_t send_some(Connection *c)
{
    if (!number_at)
        return send(c->fd, request + c->sent, request_size - c->sent, MSG_NOSIGNAL);
    size_t after = number_at + NUMBER_DIGITS, skip = c->sent;
    struct iovec parts[] = {{request, number_at}, {c->number, NUMBER_DIGITS}, {request + after, request_size - after}};
    for (int i = 0; i < 3; i++) {
        size_t gone = skip < parts[i].iov_len ? skip : parts[i].iov_len;
        parts[i].iov_base = (char *)parts[i].iov_base + gone;
        parts[i].iov_len -= gone;
        skip -= gone;
    }
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    return sendmsg(c->fd, &message, MSG_NOSIGNAL);
}

/* Write what there is room for; the rest waits for EPOLLOUT. */
static void send_rest(Connection *c)
{
    ssize_t n = send_some(c);
    if (n < 0 && errno != EAGAIN) {
        count_error("send: %s", strerror(errno));
        reopen(c);
        return;
    }
    if (n > 0)
        c->sent += (size_t)n;
    int unfinished = c->sent < request_size;
    if (unfinished != c->want_write) {
        c->want_write = unfinished;
        watch(c, EPOLL_CTL_MOD);
    }
}

static void send_request(Connection *c)
{
    static uint64_t number;
    c->sent = c->head_got = c->body = c->body_got = 0;
    c->in_body = 0;
    c->wrong[0] = 0;
    if (number_at) {
        uint64_t left = ++number;
        for (char *digit = c->number + NUMBER_DIGITS; digit-- > c->number; left /= 10)
            *digit = (char)('0' + left % 10);
    }
    c->started = now_ns();
    send_rest(c);
}

static void send_next(Connection *c)
{
    if (!unsent)
        return;
    unsent--;
    send_request(c);
}

/* A connection is made blocking, so that a refusal is seen here, and used non-blocking. */
static void open_connection(Connection *c)
{
    int yes = 1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&target, sizeof target))
        die("connect: %s", strerror(errno));
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    c->want_write = 0;
    watch(c, EPOLL_CTL_ADD);
}

static void reopen(Connection *c)
{
    close(c->fd); /* epoll forgets it by itself */
    if (errors >= MAX_ERRORS)
        return; /* the run is over, and each attempt could fail in the same way */
    open_connection(c);
    send_request(c);
}

/* The value of a header field as a pointer into the head, or NULL; field names have no case (RFC 9110, 5.1). */
static const char *field(const char *head, const char *end, const char *name)
{
    size_t length = strlen(name);
    for (const char *line = memchr(head, '\n', (size_t)(end - head)); line && line + 1 < end;
         line = memchr(line + 1, '\n', (size_t)(end - line - 1))) {
        const char *start = line + 1;
        if ((size_t)(end - start) <= length || start[length] != ':' || strncasecmp(start, name, length))
            continue;
        start += length + 1;
        return start + strspn(start, " \t");
    }
    return NULL;
}

/* Learn from the first `size` bytes of an answer how long its body is.  Returns how many of them are the head: 0 if its
 * end is not there, -1 if the answer is of no use. */
static ssize_t read_head(Connection *c, char *head, size_t size)
{
    head[size] = 0; /* strtoull and strspn stop here */
    char *end = memmem(head, size, "\r\n\r\n", 4);
    if (!end)
        return 0;
    end += 2; /* keep the last line's own end */
    const char *length = field(head, end, "content-length");
    if (strncmp(head, "HTTP/1.1 200", 12) || !length || !isdigit((unsigned char)*length)) {
        count_error("answer: %.*s", (int)(end - head), head);
        return -1;
    }
    c->body = strtoull(length, NULL, 10);
    if (expected && c->body != expected_size) {
        count_error("a body of %zu bytes, expected %zu", c->body, expected_size);
        return -1;
    }
    c->in_body = 1;
    return end + 2 - head;
}

/* Take what is of the head from the `n` bytes in `part`.  Returns where the body begins there, -1 if that is of no use. */
static ssize_t take_head(Connection *c, size_t n)
{
    ssize_t size = c->head_got ? 0 : read_head(c, part, n);
    if (size)
        return size;
    size_t before = c->head_got, taken = n < HEAD_SPACE - before ? n : HEAD_SPACE - before;
    memcpy(c->head + before, part, taken);
    c->head_got += taken;
    size = read_head(c, c->head, c->head_got);
    if (!size && c->head_got == HEAD_SPACE) {
        count_error("an answer without end of head");
        return -1;
    }
    if (size < 0)
        return size;
    return size ? size - (ssize_t)before : (ssize_t)n; /* without its end all of it is of the head */
}

/* Whether the expected body has these `n` bytes from `at` on, with the number of the request where that comes back. */
static int is_expected(const Connection *c, const char *bytes, size_t at, size_t n)
{
    if (back_at == SIZE_MAX)
        return !memcmp(bytes, expected + at, n);
    size_t until = at + n, after = back_at + NUMBER_DIGITS;
    size_t before = back_at < at ? 0 : back_at < until ? back_at - at : n; /* bytes before the number */
    size_t beyond = after < at ? 0 : after < until ? after - at : n;       /* where those behind it begin */
    for (size_t i = before; i < beyond; i++)
        if (bytes[i] != (char)(c->number[at + i - back_at] ^ back_turned))
            return 0;
    return !memcmp(bytes, expected + at, before) && !memcmp(bytes + beyond, expected + at + beyond, n - beyond);
}

/* Compare the next `n` bytes of the body, which are no more than are still to come. */
static void take_body(Connection *c, const char *bytes, size_t n)
{
    if (expected && n && !c->wrong[0] && !is_expected(c, bytes, c->body_got, n))
        snprintf(c->wrong, sizeof c->wrong, "%.*s", (int)(n < SHOWN_BYTES ? n : SHOWN_BYTES), *bytes ? bytes : "\\0");
    c->body_got += n;
}

static void finish(Connection *c, int measuring)
{
    last_answer = now_ns();
    if (c->wrong[0]) {
        count_error("another body: %s", c->wrong);
        return;
    }
    uint64_t took = last_answer - c->started;
    uint64_t bucket = took / 1000;
    completed++;
    if (measuring) {
        measured++;
        latencies[bucket < MICROSECONDS ? bucket : MICROSECONDS - 1]++;
        if (took > slowest)
            slowest = took;
    }
}

/* Read once.  Returns whether there may be more of this answer. */
static int read_part(Connection *c, int measuring)
{
    ssize_t n = recv(c->fd, part, PART_SPACE, 0), at = 0;
    if (n < 0 && errno == EAGAIN)
        return 0;
    if (n <= 0) {
        count_error("recv: %s", n ? strerror(errno) : "closed by the server");
        reopen(c);
        return 0;
    }
    if (!c->in_body && (at = take_head(c, (size_t)n)) < 0) {
        reopen(c);
        return 0;
    }
    if (!c->in_body)
        return 0;
    size_t came = (size_t)(n - at), left = c->body - c->body_got;
    take_body(c, part + at, came < left ? came : left);
    if (c->body_got < c->body)
        return n == PART_SPACE;
    if (came > left)
        count_error("%zu bytes too many", came - left);
    finish(c, measuring);
    send_next(c);
    return 0;
}

static void on_readable(Connection *c, int measuring)
{
    while (read_part(c, measuring))
        ;
}

/* The latency below which `share` of the measured requests stayed, in microseconds. */
static double percentile(double share)
{
    uint64_t wanted = (uint64_t)(share * (double)measured), seen = 0;
    for (int i = 0; i < MICROSECONDS; i++) {
        seen += latencies[i];
        if (seen > wanted)
            return i;
    }
    return 0;
}

static void report(double seconds)
{
    printf("{\"requests\": %llu, \"completed\": %llu, \"seconds\": %.6f, \"rps\": %.1f, "
           "\"p50_us\": %.0f, \"p90_us\": %.0f, \"p99_us\": %.0f, \"max_us\": %.0f, "
           "\"errors\": %llu, \"first_error\": \"%s\", \"load_cpu_seconds\": %.6f}\n",
           (unsigned long long)measured, (unsigned long long)completed, seconds,
           seconds > 0 ? (double)measured / seconds : 0, percentile(0.50), percentile(0.90), percentile(0.99),
           (double)slowest / 1000, (unsigned long long)errors, first_error, cpu_seconds() - cpu_before);
    fflush(stdout);
}

/* Handle what the connections have for us; wait for it for up to 100 ms. */
static void turn(int measuring)
{
    struct epoll_event events[256];
    int ready = epoll_wait(epoll_fd, events, 256, 100);
    for (int i = 0; i < ready && errors < MAX_ERRORS; i++) {
        Connection *c = events[i].data.ptr;
        if (events[i].events & EPOLLOUT)
            send_rest(c);
        else
            on_readable(c, measuring);
    }
    if (now_ns() - last_answer > STALL_SECONDS * 1000000000ull) {
        count_error("no answer for %d seconds", STALL_SECONDS);
        errors = MAX_ERRORS;
    }
}

/* One run by the clock, `limit` measured requests at most; 0 is no limit. */
static void run(Connection *all, int connections, double warmup, double seconds, uint64_t limit)
{
    uint64_t begin = last_answer = now_ns();
    uint64_t measure_from = begin + (uint64_t)(warmup * 1e9);
    uint64_t until = measure_from + (uint64_t)(seconds * 1e9);
    int measuring = 0;
    unsent = UINT64_MAX;
    for (int i = 0; i < connections; i++)
        send_next(&all[i]);
    for (;;) {
        uint64_t now = now_ns();
        if (!measuring && now >= measure_from) {
            measuring = 1;
            measure_from = now;
        }
        if (now >= until || errors >= MAX_ERRORS || (limit && measured >= limit)) {
            report(measuring ? (double)(now - measure_from) / 1e9 : 0);
            return;
        }
        turn(measuring);
    }
}

/* One run of exactly `count` requests, from the first byte sent to the last received. */
static void run_counted(Connection *all, int connections, uint64_t count)
{
    memset(latencies, 0, sizeof latencies);
    slowest = measured = completed = 0;
    cpu_before = cpu_seconds();
    unsent = count;
    uint64_t begin = last_answer = now_ns();
    for (int i = 0; i < connections; i++)
        send_next(&all[i]);
    while (completed < count && !errors)
        turn(1);
    report((double)(now_ns() - begin) / 1e9);
}

static void obey_stdin(Connection *all, int connections)
{
    char line[32];
    while (!errors && fgets(line, sizeof line, stdin))
        run_counted(all, connections, strtoull(line, NULL, 10));
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"host", 1, 0, 'h'},   {"port", 1, 0, 'p'},    {"connections", 1, 0, 'c'}, {"seconds", 1, 0, 's'},
        {"warmup", 1, 0, 'w'}, {"requests", 1, 0, 'n'}, {"request-file", 1, 0, 'r'}, {"expect-file", 1, 0, 'e'},
        {"number-at", 1, 0, 'a'}, {"back-at", 1, 0, 'b'}, {"back-inverted", 0, 0, 'i'}, {"on-command", 0, 0, 'o'},
        {0, 0, 0, 0}};
    int connections = 256, port = 0, on_command = 0, option;
    double seconds = 5, warmup = 1;
    uint64_t limit = 0;
    const char *host = "127.0.0.1";
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (option) {
        case 'h': host = optarg; break;
        case 'p': port = atoi(optarg); break;
        case 'c': connections = atoi(optarg); break;
        case 's': seconds = atof(optarg); break;
        case 'w': warmup = atof(optarg); break;
        case 'n': limit = strtoull(optarg, NULL, 10); break;
        case 'r': request = read_file(optarg, &request_size); break;
        case 'e': expected = read_file(optarg, &expected_size); break;
        case 'a': number_at = strtoull(optarg, NULL, 10); break;
        case 'b': back_at = strtoull(optarg, NULL, 10); break;
        case 'i': back_turned = (char)0xff; break;
        case 'o': on_command = 1; break;
        default: exit(2);
        }
    }
    target.sin_family = AF_INET;
    target.sin_port = htons((uint16_t)port);
    if (inet_pton(AF_INET, host, &target.sin_addr) != 1 || ntohl(target.sin_addr.s_addr) >> 24 != 127)
        die("--host must be an address in 127.0.0.0/8, got %s: this program loads nobody else's machine", host);
    if (!request || !request_size || port < 1 || port > 65535 || connections < 1 || connections > 100000)
        die("--request-file, --port and --connections (1 to 100000) are needed");
    if (number_at && number_at + NUMBER_DIGITS > request_size)
        die("--number-at lies outside the request");
    if (back_at != SIZE_MAX && (!number_at || !expected || back_at + NUMBER_DIGITS > expected_size))
        die("--back-at needs --number-at, and lies inside the expected body");

    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    Connection *all = calloc((size_t)connections, sizeof *all);
    for (int i = 0; i < connections; i++) {
        all[i].head = malloc(HEAD_SPACE + 1);
        open_connection(&all[i]);
    }
    if (on_command)
        obey_stdin(all, connections);
    else
        run(all, connections, warmup, seconds, limit);
    return errors ? 1 : 0;
}
