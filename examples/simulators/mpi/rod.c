/* A rod that is heated at its left end, computed by all ranks together: mpicc -O2 -o rod rod.c
 *
 * Rank 0 reads one command per line, all ranks obey, and rank 0 answers with one line:
 *     reset T       the whole rod has the temperature T     -> mean and right end
 *     step HEAT     ten steps of the solver                 -> mean and right end
 *     places        where the ranks are                     -> HOST:CORES of every rank, cores as 0,1,...
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CELLS 32 /* of the whole rod */
#define SUBSTEPS 10
#define PLACE 256 /* the longest HOST:CORES */

static int rank, ranks, cells;
static double *rod, *next; /* with a ghost cell at either end */

static void advance(double heat) {
    int left = rank ? rank - 1 : MPI_PROC_NULL, right = rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL;
    for (int k = 0; k < SUBSTEPS; k++) {
        MPI_Sendrecv(&rod[1], 1, MPI_DOUBLE, left, 0, &rod[cells + 1], 1, MPI_DOUBLE, right, 0, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        MPI_Sendrecv(&rod[cells], 1, MPI_DOUBLE, right, 1, &rod[0], 1, MPI_DOUBLE, left, 1, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        if (!rank) rod[0] = 2 * heat;
        if (rank == ranks - 1) rod[cells + 1] = 0;
        for (int i = 1; i <= cells; i++) next[i] = rod[i] + 0.4 * (rod[i - 1] - 2 * rod[i] + rod[i + 1]);
        double *old = rod;
        rod = next, next = old;
    }
}

static void tell_temperatures(void) {
    double own[2] = {0, rank == ranks - 1 ? rod[cells] : 0}, all[2];
    for (int i = 1; i <= cells; i++) own[0] += rod[i];
    MPI_Reduce(own, all, 2, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (!rank) printf("%.9g %.9g\n", all[0] / (cells * ranks), all[1]);
}

static void tell_places(void) {
    char own[PLACE], *all = rank ? NULL : malloc((size_t)ranks * PLACE);
    cpu_set_t cores;
    gethostname(own, 64);
    sched_getaffinity(0, sizeof cores, &cores);
    strcat(own, ":");
    for (int core = 0, found = 0; core < CPU_SETSIZE && strlen(own) < PLACE - 8; core++)
        if (CPU_ISSET(core, &cores)) sprintf(own + strlen(own), found++ ? ",%d" : "%d", core);
    MPI_Gather(own, PLACE, MPI_CHAR, all, PLACE, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (rank) return;
    for (int other = 0; other < ranks; other++) printf(other ? " %s" : "%s", all + other * PLACE);
    printf("\n");
    free(all);
}

int main(int count, char **words) {
    char line[80], word[80];
    double value;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    cells = CELLS / ranks;
    rod = calloc(cells + 2, sizeof *rod);
    next = calloc(cells + 2, sizeof *next);
    for (;;) {
        memset(line, 0, sizeof line);
        if (!rank && !fgets(line, sizeof line, stdin)) line[0] = 0; /* whoever asked has left */
        MPI_Bcast(line, sizeof line, MPI_CHAR, 0, MPI_COMM_WORLD);
        value = 0;
        if (sscanf(line, "%79s %lf", word, &value) < 1) break;
        if (!strcmp(word, "places")) {
            tell_places();
        } else {
            if (!strcmp(word, "step")) advance(value);
            else for (int i = 0; i < cells + 2; i++) rod[i] = value;
            tell_temperatures();
        }
        fflush(stdout);
    }
    return MPI_Finalize();
}
