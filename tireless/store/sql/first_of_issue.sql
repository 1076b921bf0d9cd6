-- Part of queries of waiting writes `w`: in order per issue, so that only the first of an issue may be taken.
       and not exists (
           select from forge_write e
            where e.state = 'waiting' and e.forge = w.forge and lower(e.host) = lower(w.host)
              and lower(e.owner) = lower(w.owner) and lower(e.repo) = lower(w.repo)
              and e.number = w.number and e.id < w.id)
