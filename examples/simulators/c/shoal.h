/* The lines protocol for a simulator in C99, or in anything that can call C. One header, no other library.
 *
 *     double low[2] = {-1, -1}, high[2] = {1, 1}, obs[2], action[1];
 *     shoal_connect(2, low, high, 1, 0, alow, ahigh);      one continuous action; n actions: shoal_connect(..., 0, n, 0, 0)
 *     while (shoal_begin()) {                              a new episode is wanted; shoal_seed is its seed, -1 if none
 *         shoal_observe(obs);
 *         while (shoal_action(action)) {                   0: the episode is over, or shoal has left
 *             ...
 *             shoal_result(obs, reward, terminated, truncated);
 *         }
 *     }
 *
 * It speaks over stdin and stdout, so print to stderr; or over the socket of SHOAL_ADDRESS where that is set.
 */
#ifndef SHOAL_H
#define SHOAL_H
#include <math.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static FILE *shoal_in, *shoal_out;
static char *shoal_line;
static size_t shoal_room;
static int shoal_num_obs, shoal_num_actions, shoal_pending;
static long long shoal_seed;

static void shoal_numbers(const double *values, int count) {
    fputc('[', shoal_out);
    for (int i = 0; i < count; i++) {
        if (i) fputc(',', shoal_out);
        if (isnan(values[i])) fputs("NaN", shoal_out);
        else if (isinf(values[i])) fputs(values[i] > 0 ? "Infinity" : "-Infinity", shoal_out);
        else fprintf(shoal_out, "%.17g", values[i]);
    }
    fputc(']', shoal_out);
}

static int shoal_read(void) { return getline(&shoal_line, &shoal_room, shoal_in) > 0; }

static int shoal_socket(const char *address) {
    int file = -1;
    if (!strncmp(address, "unix:", 5)) {
        struct sockaddr_un name = {.sun_family = AF_UNIX};
        strncpy(name.sun_path, address + 5, sizeof name.sun_path - 1);
        file = socket(AF_UNIX, SOCK_STREAM, 0);
        if (connect(file, (struct sockaddr *)&name, sizeof name)) return -1;
    } else if (!strncmp(address, "tcp:", 4)) {
        char host[256];
        const char *port = strrchr(address, ':');
        struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
        snprintf(host, sizeof host, "%.*s", (int)(port - address - 4), address + 4);
        if (getaddrinfo(host, port + 1, &hints, &found)) return -1;
        file = socket(found->ai_family, found->ai_socktype, 0);
        int failed = connect(file, found->ai_addr, found->ai_addrlen);
        freeaddrinfo(found);
        if (failed) return -1;
    }
    return file;
}

/* Say hello. With num_choices > 0 the action is one of that many numbers, else num_actions numbers between bounds. */
static int shoal_connect(int num_obs, const double *low, const double *high, int num_actions, int num_choices,
                         const double *action_low, const double *action_high) {
    const char *address = getenv("SHOAL_ADDRESS"), *token = getenv("SHOAL_TOKEN");
    int file = address ? shoal_socket(address) : -1;
    if (address && file < 0) return 0;
    shoal_in = address ? fdopen(file, "r") : stdin;
    shoal_out = address ? fdopen(dup(file), "w") : stdout;
    shoal_num_obs = num_obs, shoal_num_actions = num_choices ? 1 : num_actions;
    fputs("{\"shoal\":1,\"observation\":{\"type\":\"Box\",\"low\":", shoal_out);
    shoal_numbers(low, num_obs);
    fputs(",\"high\":", shoal_out);
    shoal_numbers(high, num_obs);
    if (num_choices) {
        fprintf(shoal_out, "},\"action\":{\"type\":\"Discrete\",\"n\":%d}", num_choices);
    } else {
        fputs("},\"action\":{\"type\":\"Box\",\"low\":", shoal_out);
        shoal_numbers(action_low, num_actions);
        fputs(",\"high\":", shoal_out);
        shoal_numbers(action_high, num_actions);
        fputs("}", shoal_out);
    }
    if (token) fprintf(shoal_out, ",\"token\":\"%s\"", token);
    fputs("}\n", shoal_out);
    fflush(shoal_out);
    return shoal_read();
}

static int shoal_begin(void) {
    if (!shoal_pending && !shoal_read()) return 0;
    shoal_pending = 0;
    if (!strstr(shoal_line, "\"reset\"")) return 0;
    const char *seed = strstr(shoal_line, "\"seed\":");
    shoal_seed = seed && strncmp(seed + 7, "null", 4) ? atoll(seed + 7) : -1;
    return 1;
}

static void shoal_observe(const double *obs) {
    fputs("{\"obs\":", shoal_out);
    shoal_numbers(obs, shoal_num_obs);
    fputs("}\n", shoal_out);
    fflush(shoal_out);
}

static int shoal_action(double *action) {
    if (!shoal_read()) return 0;
    char *at = strstr(shoal_line, "\"step\":");
    if (!at) return shoal_pending = 1, 0;
    at += 7;
    for (int i = 0; i < shoal_num_actions; i++) {
        at += strspn(at, "[, ");
        action[i] = strtod(at, &at);
    }
    return 1;
}

static void shoal_result(const double *obs, double reward, int terminated, int truncated) {
    fputs("{\"obs\":", shoal_out);
    shoal_numbers(obs, shoal_num_obs);
    fprintf(shoal_out, ",\"reward\":%.17g,\"terminated\":%s,\"truncated\":%s}\n", reward, terminated ? "true" : "false",
            truncated ? "true" : "false");
    fflush(shoal_out);
}
#endif
