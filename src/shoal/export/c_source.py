"""A plan as C99: a header and a source without dependencies, that allocate nothing.

All that a call writes lies in a struct of the caller's, so several threads may each have one.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.export.plan import ActionField, Cell, DenseLayer, Image, ObsField, Plan

WRAP = 12  # numbers on a line
OK, NOT_FINITE, NOTHING_ALLOWED = 0, 1, 2  # what `act` returns

ACTIVATIONS = {
    "linear": "",
    "tanh": "tanhf(x[k])",
    "relu": "x[k] > 0.0f ? x[k] : 0.0f",
    "elu": "x[k] < 0.0f ? expm1f(x[k]) : x[k]",
    "silu": "x[k] / (1.0f + expf(-x[k]))",
    "sigmoid": "1.0f / (1.0f + expf(-x[k]))",
    "leaky_relu": "x[k] > 0.01f * x[k] ? x[k] : 0.01f * x[k]",
    "gelu": "0.5f * x[k] * (1.0f + tanhf(0.797884561f * (x[k] + 0.044715f * x[k] * x[k] * x[k])))",
    "softplus": "(x[k] > 0.0f ? x[k] : 0.0f) + log1pf(expf(x[k] > 0.0f ? -x[k] : x[k]))",
}

DENSE = """\
/* y = x W + b */
static void dense(const float *restrict x, int num_in, const float *restrict weight, const float *restrict bias,
                  int num_out, float *restrict y)
{
    for (int j = 0; j < num_out; j++) y[j] = bias[j];
    for (int i = 0; i < num_in; i++) {
        const float xi = x[i], *restrict row = weight + (ptrdiff_t)i * num_out;
        for (int j = 0; j < num_out; j++) y[j] += xi * row[j];
    }
}
"""

LAYER_NORM = """\
static void layer_norm(float *x, int count)
{
    float mean = 0.0f, square = 0.0f;
    for (int k = 0; k < count; k++) mean += x[k];
    mean /= (float)count;
    for (int k = 0; k < count; k++) {
        x[k] -= mean;
        square += x[k] * x[k];
    }
    const float scale = 1.0f / sqrtf(square / (float)count + 1e-5f);
    for (int k = 0; k < count; k++) x[k] *= scale;
}
"""

CONVOLVE = """\
/* A convolution over [H, W, C] with zeros around it; the weights are [KH, KW, C, O], so that the inner loop is long. */
static void convolve(const float *restrict x, int channels, int height, int width, const float *restrict weight,
                     const float *restrict bias,
                     int kernel_h, int kernel_w, int stride_h, int stride_w, int top, int left, int num_out,
                     int out_h, int out_w, float *restrict y)
{
    for (int r = 0; r < out_h; r++)
        for (int s = 0; s < out_w; s++, y += num_out) {
            for (int o = 0; o < num_out; o++) y[o] = bias[o];
            for (int k = 0; k < kernel_h; k++) {
                const int row = r * stride_h + k - top;
                if (row < 0 || row >= height) continue;
                for (int l = 0; l < kernel_w; l++) {
                    const int column = s * stride_w + l - left;
                    if (column < 0 || column >= width) continue;
                    const float *pixel = x + ((ptrdiff_t)row * width + column) * channels;
                    const float *w = weight + ((ptrdiff_t)k * kernel_w + l) * channels * num_out;
                    for (int c = 0; c < channels; c++, w += num_out) {
                        const float value = pixel[c];
                        for (int o = 0; o < num_out; o++) y[o] += value * w[o];
                    }
                }
            }
        }
}
"""

SIGMOID = """\
static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}
"""

LARGEST = """\
static int largest(const float *x, int count)
{
    int best = 0;
    for (int k = 1; k < count; k++) if (x[k] > x[best]) best = k;
    return best;
}
"""


class CSource:
    """The pieces of a source file, put together by `text`."""

    def __init__(self, plan: Plan, name: str, title: str) -> None:
        self.plan, self.name, self.title = plan, name, title
        self.helpers: dict[str, str] = {}
        self.tables: list[str] = []
        self.body: list[str] = []
        self.room = self._room_size()

    def header(self) -> str:
        """The text of `NAME.h`."""
        plan, name, big = self.plan, self.name, self.name.upper()
        lines = [f"/* {self.title}: a trained policy, written by `shoal export`."]
        lines += [" *", " * obs: numbers as the environment gives them, one leaf of its space after another:"]
        for field in plan.fields:
            lines.append(f" *   {_places('obs', field)}  {_said(field)}")
        lines += [" *", " * action: numbers as the environment takes them:"]
        for action in plan.actions:
            lines.append(f" *   {_places('action', action)}  {_said(action)}")
        lines += [
            " */",
            f"#ifndef {big}_H",
            f"#define {big}_H",
            "",
            f"#define {big}_NUM_OBS {plan.num_obs}",
            f"#define {big}_NUM_ACTION {plan.num_action}",
            f"#define {big}_NUM_OUTPUTS {len(plan.head.bias)}",
            "",
            "#ifdef __cplusplus",
            'extern "C" {',
            "#endif",
            "",
            "/* Memory, and room to work in; each thread or controlled object has one of its own. */",
            "typedef struct {",
            *(f"    {kind} {member}[{size}];{note}" for kind, member, size, note in self.members("/* {} */")),
            f"}} {name}_state;",
            "",
            "/* Call it once before the first action, and wherever an episode begins. */",
            f"void {name}_reset({name}_state *state);",
            "",
            "/* The likeliest action. Returns 0, or else leaves action and memory as they were: "
            "1: a number is not finite; 2: a mask allows nothing. */",
            f"int {name}_act({name}_state *state, const double *obs, double *action);",
            "",
            "#ifdef __cplusplus",
            "}",
            "#endif",
            "#endif",
        ]
        return "\n".join(lines) + "\n"

    def members(self, comment: str) -> list[tuple[str, str, int, str]]:
        """The members of the state: C type, name, length, and a comment in the form that is given."""
        plan = self.plan

        def note(text: str) -> str:
            return "  " + comment.format(text)

        found = [("float", "outputs", len(plan.head.bias), note("of the network, last: logits, values or means"))]
        if plan.sees_reward:
            found.append(("float", "reward", 1, note("SET IT before each call: what followed the last action")))
        if plan.cell is not None:
            found.append(("float", "hidden", plan.cell.size, note("memory")))
            if plan.cell.kind == "lstm":
                found.append(("float", "memory", plan.cell.size, note("memory")))
        if plan.sees_action:
            found.append(("float", "before", plan.previous_size - plan.sees_reward, note("the last action")))
        found.append(("float", "features", max(plan.num_features, 1), note("room")))
        for member in ("room_a", "room_b"):
            found.append(("float", member, self.room, note("room")))
        return found

    def source(self) -> str:
        """The text of `NAME.c`."""
        plan, name = self.plan, self.name
        self.body = [
            f"    for (int k = 0; k < {plan.num_obs}; k++)",
            "        if (!(fabs(obs[k]) <= FLT_MAX)) return 1;",
        ]
        if plan.sees_reward:
            self.body.append("    if (!(fabsf(state->reward[0]) <= FLT_MAX)) return 1;")
        if plan.mask is not None:
            self._check_mask()
        begin = 0
        if plan.encoding is not None:
            self._encode()
            begin = plan.encoding.size
        for index, image in enumerate(plan.images):
            self._convolve(index, image, begin)
            begin += image.size
        if plan.sees_action:
            size = plan.previous_size - plan.sees_reward
            self.body.append(f"    memcpy(state->features + {begin}, state->before, {size} * sizeof(float));")
            begin += size
        if plan.sees_reward:
            self.body.append(f"    state->features[{begin}] = state->reward[0];")
        x, room = "state->features", ["state->room_a", "state->room_b"]
        for index, layer in enumerate(plan.layers):
            self._dense(layer, f"layer{index}", x, room[index % 2])
            x = room[index % 2]
        if plan.cell is not None:
            x = self._remember(plan.cell, x)
        self._dense(plan.head, "head", x, "state->outputs")
        if plan.mask is not None:
            self._rule_out()
        for action in plan.actions:
            self._decode(action)
        self.body.append("    return 0;")
        return "\n".join(
            [
                f"/* {self.title}: a trained policy, written by `shoal export`. See {name}.h. */",
                f'#include "{name}.h"',
                "",
                "#include <float.h>",
                "#include <math.h>",
                "#include <stddef.h>",
                "#include <string.h>",
                "",
                *self.tables,
                *self.helpers.values(),
                f"void {name}_reset({name}_state *state)",
                "{",
                "    memset(state, 0, sizeof *state);",
                "}",
                "",
                f"int {name}_act({name}_state *state, const double *obs, double *action)",
                "{",
                *self.body,
                "}",
                "",
            ]
        )

    def _room_size(self) -> int:
        """The most numbers that one step has between two layers."""
        sizes = [1, *(len(layer.bias) for layer in self.plan.layers)]
        for image in self.plan.images:
            sizes += [prod(image.sides), *(prod(layer.after) for layer in image.layers)]
        if self.plan.cell is not None:
            sizes.append(len(self.plan.cell.bias_x))
        return max(sizes)

    def _table(self, name: str, values: NDArray[Any], kind: str = "float") -> str:
        """A table of constants; returns its name."""
        numbers = [_number(value, kind) for value in np.asarray(values).reshape(-1).tolist()]
        rows = [", ".join(numbers[k : k + WRAP]) for k in range(0, len(numbers), WRAP)]
        inside = ",\n    ".join(rows)
        self.tables.append(f"static const {kind} {name}[{len(numbers)}] = {{\n    {inside}\n}};\n")
        return name

    def _activate(self, name: str, x: str, count: int) -> None:
        expression = ACTIVATIONS[name]
        if not expression:
            return
        self.helpers[name] = (
            f"static void apply_{name}(float *x, int count)\n{{\n"
            f"    for (int k = 0; k < count; k++) x[k] = {expression};\n}}\n"
        )
        self.body.append(f"    apply_{name}({x}, {count});")

    def _dense(self, layer: DenseLayer, name: str, x: str, y: str) -> None:
        self.helpers["dense"] = DENSE
        num_in, num_out = layer.weight.shape
        if not num_in:
            layer = DenseLayer(np.zeros((1, num_out), np.float32), layer.bias, layer.activation, layer.layer_norm)
        weight, bias = self._table(f"{name}_weight", layer.weight), self._table(f"{name}_bias", layer.bias)
        self.body.append(f"    dense({x}, {num_in}, {weight}, {bias}, {num_out}, {y});")
        if layer.layer_norm:
            self.helpers["layer_norm"] = LAYER_NORM
            self.body.append(f"    layer_norm({y}, {num_out});")
        self._activate(layer.activation, y, num_out)

    def _encode(self) -> None:
        encoding = self.plan.encoding
        assert encoding is not None
        source = self._table("obs_source", encoding.source, "int")
        steps = []
        stored = f"obs[{source}[k]]"
        if encoding.first.any():
            stored += f" - {self._table('obs_first', encoding.first, 'double')}[k]"
        if encoding.scale is not None:
            scale, shift = self._table("obs_scale", encoding.scale), self._table("obs_shift", encoding.shift)
            steps.append(f"v = v * {scale}[k] + {shift}[k];")
        if encoding.filter_shift is not None:
            shift = self._table("filter_shift", encoding.filter_shift)
            scale = self._table("filter_scale", encoding.filter_scale)
            limit = self._table("filter_limit", np.minimum(encoding.filter_limit, np.finfo(np.float32).max))
            steps.append(f"v = (v - {shift}[k]) * {scale}[k];")
            steps.append(f"if (v > {limit}[k]) v = {limit}[k];")
            steps.append(f"if (v < -{limit}[k]) v = -{limit}[k];")
        plain = self._table("plain", encoding.plain, "int") if len(encoding.plain) else ""
        if plain:
            self.body += [
                f"    for (int j = 0; j < {len(encoding.plain)}; j++) {{",
                f"        const int k = {plain}[j];",
            ]
            self.body.append(f"        float v = (float)({stored});")
            self.body += [f"        {step}" for step in steps]
            self.body += ["        state->features[j] = v;", "    }"]
        begin = len(encoding.plain)
        for column, count, width, is_indicator in encoding.choices:
            first, at = encoding.first[column], int(encoding.source[column])
            self.body += [
                "    {",
                f"        const float v = (float)(obs[{at}] - {_number(float(first), 'double')});",
                f"        const int value = v < 0.0f ? 0 : v > {count - 1}.0f ? {count - 1} : (int)v;",
                f"        for (int k = 0; k < {width}; k++) state->features[{begin} + k] = (float)"
                + ("(k == value);" if is_indicator else "((value >> k) & 1);"),
                "    }",
            ]
            begin += width

    def _convolve(self, index: int, image: Image, begin: int) -> None:
        self.helpers["convolve"] = CONVOLVE
        (channels, height, width), (c, y, x) = image.sides, image.axes
        pixel = f"(float)obs[{image.field.offset} + c * {c} + y * {y} + x * {x}]"
        place = f"(y * {width} + x) * {channels} + c"
        least, factor = _number(image.least, "float"), _number(image.factor, "float")
        self.body += [
            f"    for (int y = 0; y < {height}; y++)",
            f"        for (int x = 0; x < {width}; x++)",
            f"            for (int c = 0; c < {channels}; c++)",
            f"                state->room_a[{place}] = ({pixel} - {least}) * {factor};",
        ]
        here, there = "state->room_a", "state->room_b"
        for number, layer in enumerate(image.layers):
            weight = self._table(f"image{index}_conv{number}_weight", layer.weight.transpose(2, 3, 1, 0))
            bias = self._table(f"image{index}_conv{number}_bias", layer.bias)
            sizes = [*layer.weight.shape[2:], *layer.stride, layer.padding[2], layer.padding[0], *layer.after]
            before = ", ".join(map(str, layer.before))
            self.body.append(
                f"    convolve({here}, {before}, {weight}, {bias}, {', '.join(map(str, sizes))}, {there});"
            )
            self._activate(layer.activation, there, prod(layer.after))
            here, there = there, here
        count, rows, columns = image.layers[-1].after
        self.body += [  # the layer behind it was trained on [C, H, W]
            f"    for (int c = 0; c < {count}; c++)",
            f"        for (int k = 0; k < {rows * columns}; k++)",
            f"            state->features[{begin} + c * {rows * columns} + k] = {here}[k * {count} + c];",
        ]

    def _remember(self, cell: Cell, x: str) -> str:
        """The step of an LSTM or a GRU; the gates lie in the room that the features do not."""
        self.helpers["dense"], self.helpers["sigmoid"] = DENSE, SIGMOID
        num_in, num_gates = cell.weight_x.shape
        size = cell.size
        names = [
            self._table("cell_weight_x", cell.weight_x),
            self._table("cell_bias_x", cell.bias_x),
            self._table("cell_weight_h", cell.weight_h),
            self._table("cell_bias_h", cell.bias_h),
        ]
        by_x = "state->room_b" if x == "state->room_a" else "state->room_a"
        by_h = "state->room_a" if by_x == "state->room_b" else "state->room_b"
        self.body += [
            f"    dense({x}, {num_in}, {names[0]}, {names[1]}, {num_gates}, {by_x});",
            f"    dense(state->hidden, {size}, {names[2]}, {names[3]}, {num_gates}, {by_h});",
            f"    for (int k = 0; k < {size}; k++) {{",
            f"        const float *p = {by_x} + k, *q = {by_h} + k;",
        ]
        if cell.kind == "lstm":
            self.body += [
                f"        const float i = sigmoid(p[0] + q[0]), f = sigmoid(p[{size}] + q[{size}]);",
                f"        const float g = tanhf(p[{2 * size}] + q[{2 * size}]), "
                f"o = sigmoid(p[{3 * size}] + q[{3 * size}]);",
                "        state->memory[k] = f * state->memory[k] + i * g;",
                "        state->hidden[k] = o * tanhf(state->memory[k]);",
            ]
        else:
            self.body += [
                f"        const float r = sigmoid(p[0] + q[0]), z = sigmoid(p[{size}] + q[{size}]);",
                f"        const float n = tanhf(p[{2 * size}] + r * q[{2 * size}]);",
                "        state->hidden[k] = (1.0f - z) * n + z * state->hidden[k];",
            ]
        self.body.append("    }")
        return "state->hidden"

    def _check_mask(self) -> None:
        mask = self.plan.mask
        assert mask is not None
        source, begin = self._table("mask_source", mask.source, "int"), 0
        for count in mask.counts:
            self.body += [
                "    {",
                "        int allowed = 0;",
                f"        for (int k = {begin}; k < {begin + count}; k++) allowed |= obs[{source}[k]] != 0.0;",
                "        if (!allowed) return 2;",
                "    }",
            ]
            begin += count

    def _rule_out(self) -> None:
        mask = self.plan.mask
        assert mask is not None
        outputs = self._table("mask_outputs", mask.outputs, "int")
        self.body += [
            f"    for (int k = 0; k < {len(mask.source)}; k++)",
            f"        if (obs[mask_source[k]] == 0.0) state->outputs[{outputs}[k]] = -1e30f;",
        ]

    def _decode(self, action: ActionField) -> None:
        before = sum(sum(a.choices) if a.kind == "categorical" else a.size for a in self._earlier(action))
        if action.kind == "categorical":
            self._choose(action, before)
            return
        self.body.append(f"    for (int k = 0; k < {action.size}; k++) {{")
        out = f"action[{action.offset} + k]"
        if action.kind == "bernoulli":
            self.body.append(f"        {out} = state->outputs[{action.output} + k] > 0.0f ? 1.0 : 0.0;")
            if self.plan.sees_action:
                self.body.append(f"        state->before[{before} + k] = (float){out};")
            self.body.append("    }")
            return
        name = action.name
        scale, middle = self._table(f"to_{name}_scale", action.scale), self._table(f"to_{name}_middle", action.middle)
        self.body.append(f"        float v = state->outputs[{action.output} + k];")
        if action.squashed.any():
            squashed = self._table(f"to_{name}_squashed", action.squashed.astype(int), "int")
            self.body.append(f"        if ({squashed}[k]) v = tanhf(v);")
        value = f"v * {scale}[k] + {middle}[k]"
        self.body.append(f"        double a = {f'rintf({value})' if action.is_integer else f'{value}'};")
        for bound, sign, values in (("low", "<", action.low), ("high", ">", action.high)):
            if np.isfinite(values).any():
                most = np.finfo(np.float64).max
                table = self._table(f"to_{name}_{bound}", np.clip(values, -most, most), "double")
                self.body.append(f"        if (a {sign} {table}[k]) a = {table}[k];")
        self.body.append(f"        {out} = a;")
        if self.plan.sees_action:
            nonzero = f"({scale}[k] != 0.0f ? (double){scale}[k] : 1.0)"
            self.body.append(f"        state->before[{before} + k] = (float)((a - {middle}[k]) / {nonzero});")
        self.body.append("    }")

    def _choose(self, action: ActionField, before: int) -> None:
        self.helpers["largest"] = LARGEST
        output = action.output
        for number, (count, first) in enumerate(zip(action.choices, action.first.tolist(), strict=True)):
            picked = f"largest(state->outputs + {output}, {count})"
            out = f"action[{action.offset + number}]"
            if not self.plan.sees_action:
                self.body.append(f"    {out} = (double){picked} + {_number(float(first), 'double')};")
            else:
                self.body += [
                    "    {",
                    f"        const int picked = {picked};",
                    f"        {out} = (double)picked + {_number(float(first), 'double')};",
                    f"        for (int k = 0; k < {count}; k++) state->before[{before} + k] = (float)(k == picked);",
                    "    }",
                ]
            output, before = output + count, before + count

    def _earlier(self, action: ActionField) -> list[ActionField]:
        return [other for other in self.plan.actions if other.offset < action.offset]


def _places(array: str, field: ObsField | ActionField) -> str:
    """Where the numbers of a leaf are."""
    first, last = field.offset, field.offset + field.size - 1
    return f"{array}[{first}]" if first == last else f"{array}[{first}] .. {array}[{last}]"


def _said(field: ObsField | ActionField) -> str:
    """A leaf in the words of a comment."""
    if isinstance(field, ActionField):
        words = {"bernoulli": "0 or 1", "gaussian": f"Box of {field.dtype}"}.get(field.kind, "")
        if field.kind == "categorical":
            ranges = []
            for first, count in zip(field.first.tolist(), field.choices, strict=True):
                ranges.append(f"{first} .. {first + count - 1}")
            words = f"one of {', '.join(ranges[:8])}{', ...' * (len(ranges) > 8)}"
    else:
        words = type(field.space).__name__
        if field.kind == "mask":
            words = "1 where an action is allowed, 0 elsewhere"
    shape = f" {list(field.shape)}" if field.shape else ""
    path = "/".join(map(str, field.path))
    return f"{path}{shape}: {words}".lstrip(": ").replace("*/", "* /").replace("\n", " ")


def _number(value: float, kind: str) -> str:
    if kind == "int":
        return str(int(value))
    text = f"{value:.9g}" if kind == "float" else f"{value:.17g}"
    if not set(".en") & set(text):
        text += ".0"
    return f"{text}f" if kind == "float" else text
