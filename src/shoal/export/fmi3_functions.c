SAID const char *fmi3GetVersion(void) { return "3.0"; }

SAID void *fmi3InstantiateCoSimulation(const char *name, const char *token, const char *place, _Bool visible,
                                       _Bool logging, _Bool events, _Bool early, const unsigned *intermediate,
                                       size_t count, void *environment, void *log, void *update)
{
    (void)name, (void)place, (void)visible, (void)logging, (void)events, (void)early, (void)intermediate, (void)count;
    (void)environment, (void)log, (void)update;
    return token && !strcmp(token, "GUID") ? made() : NULL;
}

/* It is for co-simulation alone. */
SAID void *fmi3InstantiateModelExchange(void) { return NULL; }
SAID void *fmi3InstantiateScheduledExecution(void) { return NULL; }

SAID void fmi3FreeInstance(void *instance) { free(instance); }

SAID int fmi3EnterInitializationMode(void *instance, _Bool has_tolerance, double tolerance, double start,
                                     _Bool has_stop, double stop)
{
    (void)has_tolerance, (void)tolerance, (void)has_stop, (void)stop;
    if (!instance) return 3;
    ((Controller *)instance)->now = start;
    return 0;
}

SAID int fmi3ExitInitializationMode(void *instance) { return instance ? 0 : 3; }
SAID int fmi3Terminate(void *instance) { return instance ? 0 : 3; }
SAID int fmi3Reset(void *instance) { return instance ? begin(instance) : 3; }

SAID int fmi3SetDebugLogging(void *instance, _Bool on, size_t count, const char *const *categories)
{
    (void)on, (void)count, (void)categories;
    return instance ? 0 : 3;
}

/* The value reference after the last action is the time. */
SAID int fmi3GetFloat64(void *instance, const unsigned *which, size_t count, double *values, size_t length)
{
    const Controller *controller = instance;
    if (!controller || length != count) return 3;
    for (size_t k = 0; k < count; k++) {
        if (which[k] > NUM_ALL || (which[k] < NUM_ALL && WHOLE[which[k]])) return 3;
        values[k] = which[k] == NUM_ALL ? controller->now : controller->values[which[k]];
    }
    return 0;
}

SAID int fmi3GetInt32(void *instance, const unsigned *which, size_t count, int *values, size_t length)
{
    if (!instance || length != count) return 3;
    for (size_t k = 0; k < count; k++) {
        if (which[k] >= NUM_ALL || !WHOLE[which[k]]) return 3;
        values[k] = (int)((Controller *)instance)->values[which[k]];
    }
    return 0;
}

SAID int fmi3SetFloat64(void *instance, const unsigned *which, size_t count, const double *values, size_t length)
{
    if (!instance || length != count) return 3;
    for (size_t k = 0; k < count; k++) {
        if (which[k] >= NUM_IN || WHOLE[which[k]]) return 3;
        ((Controller *)instance)->values[which[k]] = values[k];
    }
    return 0;
}

SAID int fmi3SetInt32(void *instance, const unsigned *which, size_t count, const int *values, size_t length)
{
    if (!instance || length != count) return 3;
    for (size_t k = 0; k < count; k++) {
        if (which[k] >= NUM_IN || !WHOLE[which[k]]) return 3;
        ((Controller *)instance)->values[which[k]] = values[k];
    }
    return 0;
}

SAID int fmi3DoStep(void *instance, double now, double duration, _Bool no_set, _Bool *event, _Bool *end, _Bool *early,
                    double *last)
{
    (void)no_set;
    *event = *end = *early = 0;
    *last = now;
    if (!instance || step(instance, now + duration)) return 3;
    *last = now + duration;
    return 0;
}

SAID int fmi3GetFMUState(void *instance, void **state) { return keep(instance, state); }
SAID int fmi3SetFMUState(void *instance, void *state) { return go_back(instance, state); }
SAID int fmi3FreeFMUState(void *instance, void **state) { return (void)instance, forget(state); }

SAID int fmi3SerializedFMUStateSize(void *instance, void *state, size_t *size)
{
    *size = sizeof(Controller);
    return instance && state ? 0 : 3;
}

SAID int fmi3SerializeFMUState(void *instance, void *state, unsigned char *bytes, size_t size)
{
    return instance ? write_state(state, bytes, size) : 3;
}

SAID int fmi3DeserializeFMUState(void *instance, const unsigned char *bytes, size_t size, void **state)
{
    return instance && size == sizeof(Controller) ? keep(bytes, state) : 3;
}

/* There are no variables of these kinds: asking for none of them is no mistake. */
#define NO_VARIABLES(name) \
    SAID int name(void *i, const unsigned *w, size_t n, void *v, size_t m) { return (void)w, (void)v, i && !n && !m ? 0 : 3; }
NO_VARIABLES(fmi3GetFloat32) NO_VARIABLES(fmi3GetInt8) NO_VARIABLES(fmi3GetUInt8) NO_VARIABLES(fmi3GetInt16)
NO_VARIABLES(fmi3GetUInt16) NO_VARIABLES(fmi3GetUInt32) NO_VARIABLES(fmi3GetInt64) NO_VARIABLES(fmi3GetUInt64)
NO_VARIABLES(fmi3GetBoolean) NO_VARIABLES(fmi3GetString) NO_VARIABLES(fmi3SetFloat32) NO_VARIABLES(fmi3SetInt8)
NO_VARIABLES(fmi3SetUInt8) NO_VARIABLES(fmi3SetInt16) NO_VARIABLES(fmi3SetUInt16) NO_VARIABLES(fmi3SetUInt32)
NO_VARIABLES(fmi3SetInt64) NO_VARIABLES(fmi3SetUInt64) NO_VARIABLES(fmi3SetBoolean) NO_VARIABLES(fmi3SetString)

/* What a controller has no use for, and what importers look for all the same. */
#define NONE(name) SAID int name(void) { return 3; }
NONE(fmi3GetBinary) NONE(fmi3SetBinary) NONE(fmi3GetClock) NONE(fmi3SetClock) NONE(fmi3EnterEventMode)
NONE(fmi3GetNumberOfVariableDependencies) NONE(fmi3GetVariableDependencies) NONE(fmi3GetDirectionalDerivative)
NONE(fmi3GetAdjointDerivative) NONE(fmi3EnterConfigurationMode) NONE(fmi3ExitConfigurationMode)
NONE(fmi3GetIntervalDecimal) NONE(fmi3GetIntervalFraction) NONE(fmi3GetShiftDecimal) NONE(fmi3GetShiftFraction)
NONE(fmi3SetIntervalDecimal) NONE(fmi3SetIntervalFraction) NONE(fmi3SetShiftDecimal) NONE(fmi3SetShiftFraction)
NONE(fmi3EvaluateDiscreteStates) NONE(fmi3UpdateDiscreteStates) NONE(fmi3EnterContinuousTimeMode)
NONE(fmi3CompletedIntegratorStep) NONE(fmi3SetTime) NONE(fmi3SetContinuousStates)
NONE(fmi3GetContinuousStateDerivatives) NONE(fmi3GetEventIndicators) NONE(fmi3GetContinuousStates)
NONE(fmi3GetNominalsOfContinuousStates) NONE(fmi3GetNumberOfEventIndicators) NONE(fmi3GetNumberOfContinuousStates)
NONE(fmi3EnterStepMode) NONE(fmi3GetOutputDerivatives) NONE(fmi3ActivateModelPartition)
