# The lines protocol for a simulator in Julia, without packages.
#
#     Shoal.connect([-1.0], [1.0], [-1.0], [1.0])
#     while Shoal.begin_episode()                      # a new episode is wanted; Shoal.seed[] is its seed, -1 if none
#         Shoal.observe(obs)
#         while (action = Shoal.action()) !== nothing  # nothing: the episode is over, or shoal has left
#             Shoal.result(obs, reward, terminated, truncated)
#         end
#     end
#
# It speaks over stdin and stdout; print to stderr.
module Shoal

const seed = Ref(-1)
const pending = Ref("")

row(values) = "[" * join(map(number, values), ",") * "]"
number(x) = isnan(x) ? "NaN" : isinf(x) ? (x > 0 ? "Infinity" : "-Infinity") : string(Float64(x))

function say(line)
    println(stdout, line)
    flush(stdout)
end

hear() = eof(stdin) ? "" : readline(stdin)

function connect(low, high, action_low, action_high)
    observation = "{\"type\":\"Box\",\"low\":$(row(low)),\"high\":$(row(high))}"
    action = "{\"type\":\"Box\",\"low\":$(row(action_low)),\"high\":$(row(action_high))}"
    say("{\"shoal\":1,\"observation\":$observation,\"action\":$action}")
    hear()
end

function begin_episode()
    line = isempty(pending[]) ? hear() : pending[]
    pending[] = ""
    found = match(r"\"seed\":(\d+)", line)
    seed[] = found === nothing ? -1 : parse(Int, found[1])
    return occursin("\"reset\"", line)
end

observe(obs) = say("{\"obs\":$(row(obs))}")

function action()
    line = hear()
    found = match(r"\"step\":\[?([^\]}]*)", line)
    if found === nothing
        pending[] = line
        return nothing
    end
    return [parse(Float64, text) for text in split(found[1], ",")]
end

result(obs, reward, terminated, truncated) =
    say("{\"obs\":$(row(obs)),\"reward\":$(number(reward)),\"terminated\":$terminated,\"truncated\":$truncated}")

end
