"""A curriculum: the difficulty of the environment rises by one every 1000 time steps."""

import custom_env

import shoal


def curriculum_fn(train_results, task_settable_env, env_ctx):
    time_steps = train_results.get("timesteps_total")
    difficulty = time_steps // 1000
    print(f"Current difficulty: {difficulty}")
    return difficulty


config = {
    "env": custom_env.CurriculumEnv,
    "env_task_fn": curriculum_fn,
}

if __name__ == "__main__":
    with shoal.DQN(config=config) as trainer:
        for _ in range(5):
            result = trainer.train()
            print(result["timesteps_total"], "steps, task", result["task"], "return", result["episode_reward_mean"])
