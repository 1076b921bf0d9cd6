-- Part of queries of jobs in hand: a row with a word that this build does not know is left to a newer one's.
       and kind = any(%(kinds)s::text[]) and forge = any(%(forges)s::text[])
       and phase = any(%(phases)s::text[]) and lane = any(%(agents)s::text[])
