"""`--format c` and `--format fortran`: the source of a policy, compiled and asked here where a compiler is."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shoal.errors import ShoalError
from shoal.export.c_source import CSource
from shoal.export.compiling import C_FLAGS, FORTRAN_FLAGS, c_compiler, fortran_compiler, no_compiler, run, version_of
from shoal.export.fortran_module import fortran_module, fortran_prover
from shoal.export.made import Made, Request
from shoal.export.plan import Plan
from shoal.export.proof import Answers

PROVER = """\
/* Asks the policy about the observations of a file, and times it. */
#include "NAME.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define NUM_IN (2 + BIG_NUM_OBS)
#define NUM_OUT (BIG_NUM_ACTION + BIG_NUM_OUTPUTS)

static NAME_state state;

static int ask(const double *in, double *action)
{
    if (in[0] != 0.0) NAME_reset(&state);
    SET_REWARD
    return NAME_act(&state, in + 2, action);
}

int main(int argc, char **argv)
{
    const int count = argc > 3 ? atoi(argv[3]) : 0;
    double *in = malloc(sizeof(double) * NUM_IN * (size_t)count), out[NUM_OUT];
    FILE *from = fopen(argc > 1 ? argv[1] : "", "rb"), *to = fopen(argc > 2 ? argv[2] : "", "wb");
    if (!in || !from || !to || fread(in, sizeof(double) * NUM_IN, (size_t)count, from) != (size_t)count) return 1;
    for (int n = 0; n < count; n++) {
        if (ask(in + (size_t)n * NUM_IN, out)) return 2;
        for (int k = 0; k < BIG_NUM_OUTPUTS; k++) out[BIG_NUM_ACTION + k] = state.outputs[k];
        fwrite(out, sizeof out, 1, to);
    }
    long calls = 0;
    const clock_t begin = clock();
    while (clock() - begin < CLOCKS_PER_SEC / 10) {
        for (int n = 0; n < count; n++) ask(in + (size_t)n * NUM_IN, out);
        calls += count;
    }
    printf("%.17g\\n", 1e6 * (double)(clock() - begin) / CLOCKS_PER_SEC / (double)calls);
    free(in);
    return fclose(to) != 0;
}
"""


def make_c(request: Request) -> Made:
    """A header and a source."""
    plan = request.subject.plan("c")
    files = write_c(request, plan)
    compiler = c_compiler()
    if compiler is None:
        return Made(files, None, "", no_compiler("C", "CC"))
    prover = request.folder / "prove.c"
    prover.write_text(_filled(plan, request.name))
    program = request.folder / "prove"
    run([*compiler, *C_FLAGS, "-o", program, prover, f"{request.name}.c", "-lm"], request.folder)
    prover.unlink()
    return Made(files, asked_by_file(request, plan, program), version_of(compiler))


def make_fortran(request: Request) -> Made:
    """A Fortran module over the C source."""
    plan = request.subject.plan("fortran")
    files = write_c(request, plan)
    module = request.folder / f"{request.name}_module.f90"
    module.write_text(fortran_module(CSource(plan, request.name, request.subject.title)))
    files.append(module)
    compilers = c_compiler(), fortran_compiler()
    if compilers[0] is None:
        return Made(files, None, "", no_compiler("C", "CC"))
    if compilers[1] is None:
        return Made(files, None, "", no_compiler("Fortran", "FC"))
    prover, program, compiled = request.folder / "prove.f90", request.folder / "prove", request.folder / "policy.o"
    prover.write_text(fortran_prover(plan, request.name))
    run([*compilers[0], *C_FLAGS, "-c", "-o", compiled, f"{request.name}.c"], request.folder)
    run([*compilers[1], *FORTRAN_FLAGS, "-o", program, module, prover, compiled, "-lm"], request.folder)
    answers = asked_by_file(request, plan, program)
    for left in (prover, compiled, *request.folder.glob("*.mod")):
        left.unlink()
    return Made(files, answers, f"{version_of(compilers[1])} and {version_of(compilers[0])}")


def write_c(request: Request, plan: Plan) -> list[Path]:
    """Write the header and the source."""
    made = CSource(plan, request.name, request.subject.title)
    header, source = request.folder / f"{request.name}.h", request.folder / f"{request.name}.c"
    header.write_text(made.header())
    source.write_text(made.source())
    return [header, source]


def asked_by_file(request: Request, plan: Plan, program: Path) -> Answers:
    """What a program answers that reads observations from a file and writes actions and outputs into another."""
    asked, given, told = request.asked, request.folder / "asked.bin", request.folder / "told.bin"
    np.column_stack([asked.begins, asked.rewards, asked.rows]).astype(np.float64).tofile(given)
    said = run([program, given, told, str(len(asked))], request.folder)
    numbers = np.fromfile(told)
    width = plan.num_action + len(plan.head.bias)
    for left in (given, told, program):
        left.unlink()
    if numbers.size != len(asked) * width:
        raise ShoalError(f"the export cannot be proved: it answered {numbers.size} of {len(asked) * width} numbers")
    rows = numbers.reshape(len(asked), width)
    return Answers(rows[:, : plan.num_action], rows[:, plan.num_action :].astype(np.float32), float(said.split()[-1]))


def _filled(plan: Plan, name: str) -> str:
    set_reward = "state.reward[0] = (float)in[1];" if plan.sees_reward else ""
    return PROVER.replace("NAME", name).replace("BIG", name.upper()).replace("SET_REWARD", set_reward)
