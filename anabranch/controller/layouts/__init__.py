"""Layout store: topics, subscriptions and policies as records (PIP-468 "ScalableTopicResources").

`reader` reads them; a `transaction` collects the writes and announcements of one change; `store` commits it for the
leader.
"""
