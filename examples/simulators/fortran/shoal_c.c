/* The C client under names that Fortran can bind to; shoal.h is in ../c. */
#include "../c/shoal.h"

int shoal_f_connect(int num_obs, const double *low, const double *high, int num_actions, int num_choices,
                    const double *action_low, const double *action_high) {
    return shoal_connect(num_obs, low, high, num_actions, num_choices, action_low, action_high);
}
int shoal_f_begin(void) { return shoal_begin(); }
long long shoal_f_seed(void) { return shoal_seed; }
void shoal_f_observe(const double *obs) { shoal_observe(obs); }
int shoal_f_action(double *action) { return shoal_action(action); }
void shoal_f_result(const double *obs, double reward, int terminated, int truncated) {
    shoal_result(obs, reward, terminated, truncated);
}
