"""The version that every decision row carries: it moves when the same snapshot could be decided otherwise,
or the same messages lead to another snapshot.

- "2": lives of a topic are told apart, reporters are judged by Kafka's time, observed decisions are no failures
- "3": guards of profile `default` against one hot key, regretted merges and one action at a time; several decisions of
  one evaluation
- "4": a merge that waits to be applied holds no split (guard `parallelActions`); superseded decisions are no failures;
  bundles: unknown policies hold, and open moves count in the load of brokers
"""

ENGINE_VERSION = "4"
