# A tank with a hole and a tap: keep the level at 1. Started by: julia tank.jl
include("Shoal.jl")

function run()
    Shoal.connect([0.0], [5.0], [0.0], [1.0])
    while Shoal.begin_episode()
        level = 2 * mod(Shoal.seed[] * 0.618034, 1)
        Shoal.observe([level])
        step = 0
        while (tap = Shoal.action()) !== nothing
            step += 1
            level = clamp(level + 0.1 * (tap[1] - 0.5 * sqrt(max(level, 0))), 0, 5)
            Shoal.result([level], -abs(level - 1), false, step == 50)
        end
    end
end

run()
