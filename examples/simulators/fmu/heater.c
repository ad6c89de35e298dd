/* A heated mass as a co-simulation FMU of FMI 2.0 and 3.0: C dT/dt = P u - G (T - Tout), without any header of FMI.
 * build_fmu.py compiles it and packs it with its modelDescription.xml.
 */
#include <stdlib.h>
#include <string.h>

enum { HEAT_INPUT, TEMPERATURE, CAPACITY, OUTSIDE, COUNT };

static const double START[COUNT] = {0, 15, 10, 5};

typedef struct {
    double values[COUNT];
} Heater;

static void advance(Heater *heater, double duration) {
    double *v = heater->values, dt = duration / 100;
    for (int k = 0; k < 100; k++) v[TEMPERATURE] += dt / v[CAPACITY] * (20 * v[HEAT_INPUT] - (v[TEMPERATURE] - v[OUTSIDE]));
}

static Heater *made(void) {
    Heater *heater = malloc(sizeof *heater);
    if (heater) memcpy(heater->values, START, sizeof START);
    return heater;
}

static int begin(void *instance) {
    memcpy(((Heater *)instance)->values, START, sizeof START);
    return 0;
}

static int get(void *instance, const unsigned *references, size_t count, double *values) {
    for (size_t i = 0; i < count; i++) {
        if (references[i] >= COUNT) return 3;
        values[i] = ((Heater *)instance)->values[references[i]];
    }
    return 0;
}

static int set(void *instance, const unsigned *references, size_t count, const double *values) {
    for (size_t i = 0; i < count; i++) {
        if (references[i] >= COUNT) return 3;
        ((Heater *)instance)->values[references[i]] = values[i];
    }
    return 0;
}

/* A state is a copy of all values; serialized, it is their bytes. */
static int keep(void *instance, void **state) {
    if (!*state) *state = malloc(sizeof(Heater));
    if (!*state) return 3;
    memcpy(*state, instance, sizeof(Heater));
    return 0;
}

static int go_back(void *instance, const void *state) {
    memcpy(instance, state, sizeof(Heater));
    return 0;
}

static int forget(void **state) {
    free(*state);
    *state = 0;
    return 0;
}

static int write_state(const void *state, void *bytes, size_t size) {
    if (size < sizeof(Heater)) return 3;
    memcpy(bytes, state, sizeof(Heater));
    return 0;
}

static int read_state(const void *bytes, size_t size, void **state) {
    return size == sizeof(Heater) ? keep((void *)bytes, state) : 3;
}

/* FMI 2.0 */
const char *fmi2GetTypesPlatform(void) { return "default"; }
const char *fmi2GetVersion(void) { return "2.0"; }
void *fmi2Instantiate(const char *name, int type, const char *guid, const char *place, const void *calls, int visible,
                      int logging) {
    (void)name, (void)type, (void)guid, (void)place, (void)calls, (void)visible, (void)logging;
    return made();
}
void fmi2FreeInstance(void *instance) { free(instance); }
int fmi2SetupExperiment(void *instance, int has_tolerance, double tolerance, double start, int has_stop, double stop) {
    (void)instance, (void)has_tolerance, (void)tolerance, (void)start, (void)has_stop, (void)stop;
    return 0;
}
int fmi2EnterInitializationMode(void *instance) { return instance == 0; }
int fmi2ExitInitializationMode(void *instance) { return instance == 0; }
int fmi2Terminate(void *instance) { return instance == 0; }
int fmi2Reset(void *instance) { return begin(instance); }
int fmi2GetReal(void *instance, const unsigned *vr, size_t n, double *values) { return get(instance, vr, n, values); }
int fmi2SetReal(void *instance, const unsigned *vr, size_t n, const double *values) { return set(instance, vr, n, values); }
int fmi2DoStep(void *instance, double now, double duration, int no_set) {
    (void)now, (void)no_set;
    advance(instance, duration);
    return 0;
}

int fmi2GetFMUstate(void *instance, void **state) { return keep(instance, state); }
int fmi2SetFMUstate(void *instance, void *state) { return go_back(instance, state); }
int fmi2FreeFMUstate(void *instance, void **state) { return instance ? forget(state) : 3; }
int fmi2SerializedFMUstateSize(void *instance, void *state, size_t *size) {
    *size = sizeof(Heater);
    return instance && state ? 0 : 3;
}
int fmi2SerializeFMUstate(void *instance, void *state, char *bytes, size_t size) {
    return instance ? write_state(state, bytes, size) : 3;
}
int fmi2DeSerializeFMUstate(void *instance, const char *bytes, size_t size, void **state) {
    return instance ? read_state(bytes, size, state) : 3;
}

/* FMI 3.0 */
const char *fmi3GetVersion(void) { return "3.0"; }
void *fmi3InstantiateCoSimulation(const char *name, const char *token, const char *place, _Bool visible, _Bool logging,
                                  _Bool events, _Bool early, const unsigned *vr, size_t n, void *environment, void *log,
                                  void *update) {
    (void)name, (void)token, (void)place, (void)visible, (void)logging, (void)events, (void)early, (void)vr, (void)n;
    (void)environment, (void)log, (void)update;
    return made();
}
void fmi3FreeInstance(void *instance) { free(instance); }
int fmi3EnterInitializationMode(void *instance, _Bool has_tolerance, double tolerance, double start, _Bool has_stop,
                                double stop) {
    (void)has_tolerance, (void)tolerance, (void)start, (void)has_stop, (void)stop;
    return instance == 0;
}
int fmi3ExitInitializationMode(void *instance) { return instance == 0; }
int fmi3Terminate(void *instance) { return instance == 0; }
int fmi3Reset(void *instance) { return begin(instance); }
int fmi3GetFloat64(void *instance, const unsigned *vr, size_t n, double *values, size_t m) {
    return n == m ? get(instance, vr, n, values) : 3;
}
int fmi3SetFloat64(void *instance, const unsigned *vr, size_t n, const double *values, size_t m) {
    return n == m ? set(instance, vr, n, values) : 3;
}
int fmi3DoStep(void *instance, double now, double duration, _Bool no_set, _Bool *event, _Bool *end, _Bool *early,
               double *last) {
    (void)no_set;
    advance(instance, duration);
    *event = *end = *early = 0;
    *last = now + duration;
    return 0;
}

int fmi3GetFMUState(void *instance, void **state) { return keep(instance, state); }
int fmi3SetFMUState(void *instance, void *state) { return go_back(instance, state); }
int fmi3FreeFMUState(void *instance, void **state) { return instance ? forget(state) : 3; }
int fmi3SerializedFMUStateSize(void *instance, void *state, size_t *size) {
    *size = sizeof(Heater);
    return instance && state ? 0 : 3;
}
int fmi3SerializeFMUState(void *instance, void *state, unsigned char *bytes, size_t size) {
    return instance ? write_state(state, bytes, size) : 3;
}
int fmi3DeserializeFMUState(void *instance, const unsigned char *bytes, size_t size, void **state) {
    return instance ? read_state(bytes, size, state) : 3;
}

/* What this model has no use for, and what importers look for all the same. */
#define NONE(name) int name(void) { return 3; }
NONE(fmi2SetDebugLogging) NONE(fmi2GetInteger) NONE(fmi2GetBoolean) NONE(fmi2GetString) NONE(fmi2SetInteger)
NONE(fmi2SetBoolean) NONE(fmi2SetString)
NONE(fmi2GetDirectionalDerivative) NONE(fmi2SetRealInputDerivatives) NONE(fmi2GetRealOutputDerivatives)
NONE(fmi2CancelStep) NONE(fmi2GetStatus) NONE(fmi2GetRealStatus) NONE(fmi2GetIntegerStatus)
NONE(fmi2GetBooleanStatus) NONE(fmi2GetStringStatus)
NONE(fmi3SetDebugLogging) NONE(fmi3InstantiateModelExchange) NONE(fmi3InstantiateScheduledExecution)
NONE(fmi3EnterEventMode) NONE(fmi3GetFloat32) NONE(fmi3GetInt8) NONE(fmi3GetUInt8) NONE(fmi3GetInt16)
NONE(fmi3GetUInt16) NONE(fmi3GetInt32) NONE(fmi3GetUInt32) NONE(fmi3GetInt64) NONE(fmi3GetUInt64)
NONE(fmi3GetBoolean) NONE(fmi3GetString) NONE(fmi3GetBinary) NONE(fmi3GetClock) NONE(fmi3SetFloat32)
NONE(fmi3SetInt8) NONE(fmi3SetUInt8) NONE(fmi3SetInt16) NONE(fmi3SetUInt16) NONE(fmi3SetInt32) NONE(fmi3SetUInt32)
NONE(fmi3SetInt64) NONE(fmi3SetUInt64) NONE(fmi3SetBoolean) NONE(fmi3SetString) NONE(fmi3SetBinary)
NONE(fmi3SetClock) NONE(fmi3GetNumberOfVariableDependencies) NONE(fmi3GetVariableDependencies)
NONE(fmi3GetDirectionalDerivative) NONE(fmi3GetAdjointDerivative)
NONE(fmi3EnterConfigurationMode) NONE(fmi3ExitConfigurationMode) NONE(fmi3GetIntervalDecimal)
NONE(fmi3GetIntervalFraction) NONE(fmi3GetShiftDecimal) NONE(fmi3GetShiftFraction) NONE(fmi3SetIntervalDecimal)
NONE(fmi3SetIntervalFraction) NONE(fmi3SetShiftDecimal) NONE(fmi3SetShiftFraction) NONE(fmi3EvaluateDiscreteStates)
NONE(fmi3UpdateDiscreteStates) NONE(fmi3EnterContinuousTimeMode) NONE(fmi3CompletedIntegratorStep) NONE(fmi3SetTime)
NONE(fmi3SetContinuousStates) NONE(fmi3GetContinuousStateDerivatives) NONE(fmi3GetEventIndicators)
NONE(fmi3GetContinuousStates) NONE(fmi3GetNominalsOfContinuousStates) NONE(fmi3GetNumberOfEventIndicators)
NONE(fmi3GetNumberOfContinuousStates) NONE(fmi3EnterStepMode) NONE(fmi3GetOutputDerivatives)
NONE(fmi3ActivateModelPartition)
