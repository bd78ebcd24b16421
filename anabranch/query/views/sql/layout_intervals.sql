-- Layouts of topics, each from the batch that took it in to the next: as the job knew them.
-- version: 2
-- topic string: The topic.
-- life bigint: Incarnation of the topic, greater at each creation after a deletion: when it began, milliseconds since 1970; where that was not announced, when the one before was deleted (0: none was).
-- epoch bigint: Epoch of the layout.
-- cause string: What led to it: `created`, `split`, `merge`, `prune`, `policy`, or `snapshot` (it was not known before).
-- decision_id string: The decision that led to it, if one did and it was said.
-- active_segments bigint: How many segments were active.
-- changed_at timestamp: When it came to be, by the clock of whoever announced it.
-- valid_from timestamp: Time of the batch that took it in.
-- valid_to timestamp: When another one was taken in, or the topic was deleted; null: it is the present one.
-- layout string: The announcement, JSON: `layout` in it has every segment.
-- begun_from timestamp: Loads that were taken in before are of an earlier incarnation; null: there was none.
SELECT s.topic, s.life, s.epoch, s.cause, s.decision_id, s.active_segments, s.changed_at, s.valid_from, s.valid_to,
       e.body AS layout, s.begun_from
FROM layout_spans s
JOIN events e ON e.subject = s.topic AND e.accepted_at = s.valid_from AND e.kafka_partition = s.kafka_partition
  AND e.kafka_offset = s.kafka_offset AND e.type = 'layout'
