"""Engine version in every decision row; a change marks decisions that may differ.

It is incremented when the same snapshot may be decided differently, or the same messages lead to another snapshot.

- "2": incarnations of a topic are told apart, reporters are judged by Kafka's time, observed decisions are no failures
- "3": guards of profile `default` against one hot key, reversed merges and one action at a time; several decisions per
  evaluation
- "4": a merge that waits to be applied holds no split (guard `parallelActions`); superseded decisions are no failures;
  bundles: unknown policies hold, and open moves count in the load of brokers
- "5": a decision on a topic that the cluster does not know is a failure
"""

ENGINE_VERSION = "5"
