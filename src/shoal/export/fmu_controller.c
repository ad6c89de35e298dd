/* A trained policy as a co-simulation FMU of FMI VERSION, written by `shoal export`. No header of FMI is needed.
 *
 * Inputs are the numbers of an observation, outputs those of an action. A step of the simulation is one action: what
 * the policy does for the inputs that were set before it. Value references are indices: observations, then the
 * reward of the last step where the policy sees it, then actions.
 */
#include "NAME.h"
#include <stdlib.h>
#include <string.h>

#define NUM_IN (BIG_NUM_OBS + SEES_REWARD)
#define NUM_ALL (NUM_IN + BIG_NUM_ACTION)
#define SAID __attribute__((visibility("default")))

/* 1 where a variable is an integer */
static const char WHOLE[NUM_ALL] = {IS_WHOLE};

/* What the inputs are before anybody sets them. */
static const double START[NUM_ALL] = {STARTS};

typedef struct {
    NAME_state state;
    double values[NUM_ALL];
    double now;
} Controller;

static int begin(Controller *controller)
{
    NAME_reset(&controller->state);
    memcpy(controller->values, START, sizeof START);
    controller->now = 0;
    return 0;
}

static Controller *made(void)
{
    Controller *controller = calloc(1, sizeof *controller);
    if (controller) begin(controller);
    return controller;
}

static int step(Controller *controller, double until)
{
    GIVE_REWARD
    if (NAME_act(&controller->state, controller->values, controller->values + NUM_IN)) return 3;
    controller->now = until;
    return 0;
}

/* A state is a copy of all of it; serialized, it is its bytes. */
static int keep(const void *instance, void **state)
{
    if (!*state) *state = malloc(sizeof(Controller));
    if (!instance || !*state) return 3;
    memcpy(*state, instance, sizeof(Controller));
    return 0;
}

static int go_back(void *instance, const void *state)
{
    if (!instance || !state) return 3;
    memcpy(instance, state, sizeof(Controller));
    return 0;
}

static int forget(void **state)
{
    free(*state);
    *state = NULL;
    return 0;
}

static int write_state(const void *state, void *bytes, size_t size)
{
    if (!state || size < sizeof(Controller)) return 3;
    memcpy(bytes, state, sizeof(Controller));
    return 0;
}

