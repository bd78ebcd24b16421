-- How evenly a cluster with bundles was loaded, minute by minute: of the brokers that reported in it.
-- version: 1
-- cluster string: The cluster.
-- minute timestamp: Beginning of the minute.
-- brokers bigint: Brokers that reported.
-- mean double: Of their usage (`broker_usage`).
-- highest double: Of the fullest.
-- lowest double: Of the emptiest.
-- deviation double: Standard deviation.
-- highest_by_mean double: The fullest by the mean; null: all are idle.
-- idle bigint: Brokers below a quarter of the mean.
-- over bigint: Brokers above 0.85.
-- day date: UTC date.
WITH of_minutes AS (
  SELECT cluster, broker, date_trunc('minute', accepted_at) AS minute, day, max(usage) AS usage
  FROM broker_usage
  GROUP BY cluster, broker, date_trunc('minute', accepted_at), day
), means AS (
  SELECT cluster, minute, day, avg(usage) AS mean FROM of_minutes GROUP BY cluster, minute, day
)
SELECT u.cluster, u.minute, count(*) AS brokers, max(m.mean) AS mean, max(u.usage) AS highest, min(u.usage) AS lowest,
       stddev_pop(u.usage) AS deviation,
       CASE WHEN max(m.mean) > 0 THEN max(u.usage) / max(m.mean) END AS highest_by_mean,
       CAST(sum(CASE WHEN u.usage < m.mean / 4 THEN 1 ELSE 0 END) AS BIGINT) AS idle,
       CAST(sum(CASE WHEN u.usage > 0.85 THEN 1 ELSE 0 END) AS BIGINT) AS over,
       u.day
FROM of_minutes u JOIN means m ON m.cluster = u.cluster AND m.minute = u.minute AND m.day = u.day
GROUP BY u.cluster, u.minute, u.day
