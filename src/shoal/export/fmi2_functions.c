SAID const char *fmi2GetTypesPlatform(void) { return "default"; }
SAID const char *fmi2GetVersion(void) { return "2.0"; }

SAID void *fmi2Instantiate(const char *name, int type, const char *guid, const char *place, const void *calls,
                           int visible, int logging)
{
    (void)name, (void)place, (void)calls, (void)visible, (void)logging;
    if (type != 1 || !guid || strcmp(guid, "GUID")) return NULL;
    return made();
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
    (void)no_set;
    return instance ? step(instance, now + duration) : 3;
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

SAID int fmi2GetFMUstate(void *instance, void **state) { return keep(instance, state); }
SAID int fmi2SetFMUstate(void *instance, void *state) { return go_back(instance, state); }
SAID int fmi2FreeFMUstate(void *instance, void **state) { return (void)instance, forget(state); }

SAID int fmi2SerializedFMUstateSize(void *instance, void *state, size_t *size)
{
    *size = sizeof(Controller);
    return instance && state ? 0 : 3;
}

SAID int fmi2SerializeFMUstate(void *instance, void *state, char *bytes, size_t size)
{
    return instance ? write_state(state, bytes, size) : 3;
}

SAID int fmi2DeSerializeFMUstate(void *instance, const char *bytes, size_t size, void **state)
{
    return instance && size == sizeof(Controller) ? keep(bytes, state) : 3;
}
