/* A mass on a spring that must come to rest: cc -O2 -o oscillator oscillator.c -lm */
#include "shoal.h"

#define STEPS 100
#define DT 0.1

int main(void) {
    double low[2] = {-10, -10}, high[2] = {10, 10}, push_low[1] = {-1}, push_high[1] = {1};
    double state[2], push[1];
    if (!shoal_connect(2, low, high, 1, 0, push_low, push_high)) return 1;
    while (shoal_begin()) {
        unsigned long long chance = 6364136223846793005ULL * (unsigned long long)(shoal_seed + 1) + 1442695040888963407ULL;
        state[0] = 2.0 * ((double)(chance >> 11) / 9007199254740992.0) - 1.0;
        state[1] = 0;
        shoal_observe(state);
        for (int step = 1; shoal_action(push); step++) {
            for (int k = 0; k < 10; k++) {
                state[1] += DT / 10 * (-state[0] + push[0]);
                state[0] += DT / 10 * state[1];
            }
            shoal_result(state, -(state[0] * state[0] + 0.1 * state[1] * state[1]), 0, step == STEPS);
        }
    }
    return 0;
}
