/* Burgers' equation with a force, u_t + u u_x = nu u_xx + f, on a ring: reads control.txt and state.txt, writes state.txt.
 *     cc -O2 -o template/burgers burgers.c -lm
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#define CELLS 64
#define PI 3.14159265358979323846

int main(void) {
    double u[CELLS], next[CELLS], force, viscosity, dx = 2 * PI / CELLS, dt = 0.01;
    FILE *control = fopen("control.txt", "r"), *state = fopen("state.txt", "r");
    if (!control || !state || fscanf(control, "force %lf viscosity %lf", &force, &viscosity) != 2) return 2;
    for (int i = 0; i < CELLS; i++)
        if (fscanf(state, "%lf", &u[i]) != 1) return 2;
    fclose(control);
    fclose(state);
    for (int step = 0; step < 20; step++) {
        for (int i = 0; i < CELLS; i++) {
            double left = u[(i + CELLS - 1) % CELLS], right = u[(i + 1) % CELLS];
            double slope = u[i] > 0 ? (u[i] - left) / dx : (right - u[i]) / dx;
            next[i] = u[i] + dt * (-u[i] * slope + viscosity * (left - 2 * u[i] + right) / (dx * dx) + force * sin(i * dx));
        }
        memcpy(u, next, sizeof u);
        if (!isfinite(u[0]) || fabs(u[0]) > 1e3) {
            fprintf(stderr, "diverged at step %d\n", step);
            return 1;
        }
    }
    if (!(state = fopen("state.txt", "w"))) return 2;
    for (int i = 0; i < CELLS; i++) fprintf(state, "%.17g\n", u[i]);
    return fclose(state) != 0;
}
