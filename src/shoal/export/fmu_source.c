/* A trained policy as a co-simulation FMU of FMI 2.0, written by `shoal export`. No header of FMI is needed.
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
} Controller;

static int begin(Controller *controller)
{
    NAME_reset(&controller->state);
    memcpy(controller->values, START, sizeof START);
    return 0;
}

SAID const char *fmi2GetTypesPlatform(void) { return "default"; }
SAID const char *fmi2GetVersion(void) { return "2.0"; }

SAID void *fmi2Instantiate(const char *name, int type, const char *guid, const char *place, const void *calls,
                           int visible, int logging)
{
    (void)name, (void)place, (void)calls, (void)visible, (void)logging;
    if (type != 1 || !guid || strcmp(guid, "GUID")) return NULL;
    Controller *controller = malloc(sizeof *controller);
    if (controller) begin(controller);
    return controller;
}

SAID void fmi2FreeInstance(void *instance) { free(instance); }

SAID int fmi2SetupExperiment(void *instance, int has_tolerance, double tolerance, double start, int has_stop,
                             double stop)
{
    (void)has_tolerance, (void)tolerance, (void)start, (void)has_stop, (void)stop;
    return instance ? 0 : 3;
}

SAID int fmi2EnterInitializationMode(void *instance) { return instance ? 0 : 3; }
SAID int fmi2ExitInitializationMode(void *instance) { return instance ? 0 : 3; }
SAID int fmi2Terminate(void *instance) { return instance ? 0 : 3; }
SAID int fmi2Reset(void *instance) { return instance ? begin(instance) : 3; }

SAID int fmi2SetDebugLogging(void *instance, int on, size_t count, const char *const *categories)
{
    (void)on, (void)count, (void)categories;
    return instance ? 0 : 3;
}

SAID int fmi2GetReal(void *instance, const unsigned *which, size_t count, double *values)
{
    for (size_t k = 0; k < count; k++) {
        if (which[k] >= NUM_ALL || WHOLE[which[k]]) return 3;
        values[k] = ((Controller *)instance)->values[which[k]];
    }
    return 0;
}

SAID int fmi2GetInteger(void *instance, const unsigned *which, size_t count, int *values)
{
    for (size_t k = 0; k < count; k++) {
        if (which[k] >= NUM_ALL || !WHOLE[which[k]]) return 3;
        values[k] = (int)((Controller *)instance)->values[which[k]];
    }
    return 0;
}

SAID int fmi2SetReal(void *instance, const unsigned *which, size_t count, const double *values)
{
    for (size_t k = 0; k < count; k++) {
        if (which[k] >= NUM_IN || WHOLE[which[k]]) return 3;
        ((Controller *)instance)->values[which[k]] = values[k];
    }
    return 0;
}

SAID int fmi2SetInteger(void *instance, const unsigned *which, size_t count, const int *values)
{
    for (size_t k = 0; k < count; k++) {
        if (which[k] >= NUM_IN || !WHOLE[which[k]]) return 3;
        ((Controller *)instance)->values[which[k]] = values[k];
    }
    return 0;
}

/* There are no variables of these kinds. */
SAID int fmi2GetBoolean(void *i, const unsigned *w, size_t n, int *v) { return (void)w, (void)v, i && !n ? 0 : 3; }
SAID int fmi2SetBoolean(void *i, const unsigned *w, size_t n, const int *v) { return (void)w, (void)v, i && !n ? 0 : 3; }
SAID int fmi2GetString(void *i, const unsigned *w, size_t n, const char **v) { return (void)w, (void)v, i && !n ? 0 : 3; }
SAID int fmi2SetString(void *i, const unsigned *w, size_t n, const char *const *v)
{
    return (void)w, (void)v, i && !n ? 0 : 3;
}

SAID int fmi2DoStep(void *instance, double now, double duration, int no_set)
{
    Controller *controller = instance;
    (void)now, (void)duration, (void)no_set;
    if (!controller) return 3;
    GIVE_REWARD
    return NAME_act(&controller->state, controller->values, controller->values + NUM_IN) ? 3 : 0;
}

SAID int fmi2CancelStep(void *instance) { return (void)instance, 3; }
SAID int fmi2GetStatus(void *i, int kind, int *value) { return (void)i, (void)kind, (void)value, 2; }
SAID int fmi2GetRealStatus(void *i, int kind, double *value) { return (void)i, (void)kind, (void)value, 2; }
SAID int fmi2GetIntegerStatus(void *i, int kind, int *value) { return (void)i, (void)kind, (void)value, 2; }
SAID int fmi2GetBooleanStatus(void *i, int kind, int *value) { return (void)i, (void)kind, (void)value, 2; }
SAID int fmi2GetStringStatus(void *i, int kind, const char **value) { return (void)i, (void)kind, (void)value, 2; }
SAID int fmi2SetRealInputDerivatives(void *i, const unsigned *w, size_t n, const int *o, const double *v)
{
    return (void)w, (void)o, (void)v, i && !n ? 0 : 3;
}
SAID int fmi2GetRealOutputDerivatives(void *i, const unsigned *w, size_t n, const int *o, double *v)
{
    return (void)w, (void)o, (void)v, i && !n ? 0 : 3;
}
SAID int fmi2GetDirectionalDerivative(void *i, const unsigned *u, size_t n, const unsigned *k, size_t m,
                                      const double *dk, double *du)
{
    return (void)i, (void)u, (void)n, (void)k, (void)m, (void)dk, (void)du, 3;
}

/* A state is a copy of all of it; serialized, it is its bytes. */
SAID int fmi2GetFMUstate(void *instance, void **state)
{
    if (!*state) *state = malloc(sizeof(Controller));
    if (!instance || !*state) return 3;
    memcpy(*state, instance, sizeof(Controller));
    return 0;
}

SAID int fmi2SetFMUstate(void *instance, void *state)
{
    if (!instance || !state) return 3;
    memcpy(instance, state, sizeof(Controller));
    return 0;
}

SAID int fmi2FreeFMUstate(void *instance, void **state)
{
    (void)instance;
    free(*state);
    *state = NULL;
    return 0;
}

SAID int fmi2SerializedFMUstateSize(void *instance, void *state, size_t *size)
{
    *size = sizeof(Controller);
    return instance && state ? 0 : 3;
}

SAID int fmi2SerializeFMUstate(void *instance, void *state, char *bytes, size_t size)
{
    if (!instance || !state || size < sizeof(Controller)) return 3;
    memcpy(bytes, state, sizeof(Controller));
    return 0;
}

SAID int fmi2DeSerializeFMUstate(void *instance, const char *bytes, size_t size, void **state)
{
    if (!instance || size != sizeof(Controller)) return 3;
    return fmi2GetFMUstate((void *)bytes, state);
}
