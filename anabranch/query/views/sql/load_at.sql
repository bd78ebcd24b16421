-- The load of every active segment at an instant, as the job knew it.
-- version: 2
-- parameter at timestamp: The instant.
-- topic string: The topic.
-- segment_id bigint: An active segment.
-- hash_start bigint: First hash of its range.
-- hash_end bigint: Last hash of its range.
-- msg_rate_in double: Messages in a second; null, as the other three: no load was on record.
-- bytes_rate_in double: Bytes in a second.
-- msg_rate_out double: Messages out a second.
-- bytes_rate_out double: Bytes out a second.
-- reporter string: Who measured it.
-- sampled_at timestamp: When, by the reporter's clock.
-- known_since timestamp: Time of the batch that took it in.
WITH newest AS (
  SELECT topic, segment_id, max(accepted_at) AS accepted_at
  FROM segment_load
  WHERE accepted_at <= $at
  GROUP BY topic, segment_id
), loads AS (
  SELECT l.topic, l.segment_id, l.msg_rate_in, l.bytes_rate_in, l.msg_rate_out, l.bytes_rate_out, l.reporter,
         l.sampled_at, l.accepted_at,
         row_number() OVER (
           PARTITION BY l.topic, l.segment_id ORDER BY l.kafka_partition DESC, l.kafka_offset DESC) AS place
  FROM segment_load l
  JOIN newest n ON n.topic = l.topic AND n.segment_id = l.segment_id AND n.accepted_at = l.accepted_at
)
SELECT s.topic, s.segment_id, s.hash_start, s.hash_end, l.msg_rate_in, l.bytes_rate_in, l.msg_rate_out,
       l.bytes_rate_out, l.reporter, l.sampled_at, l.accepted_at AS known_since
FROM layout_at($at) s
LEFT JOIN loads l ON l.topic = s.topic AND l.segment_id = s.segment_id AND l.place = 1
  AND (s.begun_from IS NULL OR l.accepted_at >= s.begun_from)
