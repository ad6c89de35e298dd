"""The Python API from end to end: train, look, save, evaluate, restore, act, and reach into policies and workers."""

from custom_env import Rendezvous3DOF

import shoal
from shoal import pretty_print


def main() -> None:
    trainer = shoal.DQN(env=Rendezvous3DOF, config={"num_workers": 4})

    config = trainer.get_config()
    print(pretty_print(config))

    for _ in range(10):
        result = trainer.train()

    print(pretty_print(result))

    checkpoint = trainer.save()
    print(checkpoint)

    evaluation = trainer.evaluate(checkpoint)
    print(pretty_print(evaluation))

    restored_trainer = shoal.DQN(env=Rendezvous3DOF)
    restored_trainer.restore(checkpoint)

    env = Rendezvous3DOF()
    done = False
    total_reward = 0.0
    observation, info = env.reset()

    while not done:
        action = trainer.compute_single_action(observation)
        observation, reward, terminated, truncated, info = env.step(action)
        done = terminated or truncated
        total_reward += reward
    print("total reward", total_reward, info)

    first, second = (env.reset(seed=seed)[0] for seed in (1, 2))
    actions = trainer.compute_actions({"obs1": first, "obs2": second})
    print(actions)  # {'obs1': 0, 'obs2': 2}, for example

    policy = trainer.get_policy()
    print(policy.get_weights())  # the parameters of the model, by name

    model = policy.model
    model.base_model.summary()

    workers = trainer.workers
    weights = workers.foreach_worker(lambda remote_trainer: remote_trainer.get_policy().get_weights())
    print(len(weights), "workers have", sorted(weights[0]))

    trainer.stop()


if __name__ == "__main__":
    main()
