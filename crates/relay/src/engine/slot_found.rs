//! Whether a slot that was found brings everything that it should.

use pgoutput::Lsn;

/// What PostgreSQL says of the slot.
#[derive(Debug, Clone, Default)]
pub(crate) struct SlotSeen {
    /// The output plugin is the one that the relay asks for.
    pub(crate) is_pgoutput: bool,
    /// Where it belongs, if not here.
    pub(crate) elsewhere: Option<String>,
    /// Somebody reads it, or has it made.
    pub(crate) is_active: bool,
    /// The log that it needs is gone.
    pub(crate) is_lost: bool,
    /// Surely not the one that was created here, which follows a failover from PostgreSQL 17 on.
    pub(crate) is_replaced: bool,
    /// `None` if it never became consistent.
    pub(crate) confirmed: Option<Lsn>,
}

/// What is written down of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct SlotKnown {
    /// The cluster is the one in which it was created.
    pub(crate) is_of_this_cluster: bool,
    /// The publication always had the table.
    pub(crate) is_trusted: bool,
    /// The slot is never confirmed beyond it.
    pub(crate) checkpoint: Option<Lsn>,
    /// Where it begins. `None` while it is being created.
    pub(crate) start_snapshot: Option<String>,
}

/// What is to be done about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SlotFound {
    /// It brings every row that `start_snapshot` does not show, from `confirmed` on.
    Ours { start_snapshot: String, confirmed: Lsn },
    /// Somebody else reads it, or has it made.
    Busy,
    /// It belongs to another database.
    Elsewhere(String),
    /// No relay created it.
    NotOurs,
    /// It is to be created, and `drop`ped before.
    Anew { drop: bool, reason: &'static str },
}

impl SlotFound {
    /// Beyond what was written down, the slot was created since, or advanced: what lies in between, it
    /// does not bring. A slot that is behind brings something again, and the stream's tail tells what.
    pub(crate) fn of(seen: Option<&SlotSeen>, known: Option<&SlotKnown>) -> Self {
        let Some(seen) = seen else {
            let reason = known.map_or("there was none", |_| "the replication slot is gone");
            return Self::Anew { drop: false, reason };
        };
        if let Some(database) = &seen.elsewhere {
            return Self::Elsewhere(database.clone());
        }
        if seen.is_active {
            return Self::Busy;
        }
        let Some(known) = known.filter(|_| seen.is_pgoutput) else { return Self::NotOurs };
        let is_beyond = known.checkpoint.is_some_and(|it| seen.confirmed > Some(it));
        let reason = match (seen.confirmed, &known.start_snapshot) {
            (None, _) => "PostgreSQL gave the slot's log up",
            _ if seen.is_lost => "PostgreSQL gave the slot's log up",
            _ if !known.is_of_this_cluster => "the database was copied from another cluster",
            _ if seen.is_replaced || is_beyond => "somebody replaced or advanced the slot",
            _ if !known.is_trusted => "the log lacks rows of the table",
            (Some(_), None) => "the slot's creation was interrupted",
            (Some(confirmed), Some(start)) => {
                return Self::Ours { start_snapshot: start.clone(), confirmed };
            }
        };
        Self::Anew { drop: true, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(confirmed: u64) -> SlotSeen {
        SlotSeen { is_pgoutput: true, confirmed: Some(Lsn(confirmed)), ..SlotSeen::default() }
    }

    fn known() -> SlotKnown {
        SlotKnown {
            is_of_this_cluster: true,
            is_trusted: true,
            checkpoint: Some(Lsn(100)),
            start_snapshot: Some("5:5:".into()),
        }
    }

    fn is_made_anew(seen: &SlotSeen, known: &SlotKnown) -> bool {
        matches!(SlotFound::of(Some(seen), Some(known)), SlotFound::Anew { drop: true, .. })
    }

    #[test]
    fn a_slot_that_is_behind_or_where_it_was_left_is_read_and_one_that_is_ahead_is_not() {
        for (confirmed, is_read) in [(0, true), (99, true), (100, true), (101, false)] {
            let found = SlotFound::of(Some(&seen(confirmed)), Some(&known()));
            let ours = SlotFound::Ours { start_snapshot: "5:5:".into(), confirmed: Lsn(confirmed) };
            assert_eq!(found == ours, is_read, "{confirmed}: {found:?}");
        }
    }

    #[test]
    fn a_slot_is_made_anew_whose_log_lacks_something() {
        assert!(is_made_anew(&SlotSeen { confirmed: None, ..seen(1) }, &known()));
        assert!(is_made_anew(&SlotSeen { is_lost: true, ..seen(1) }, &known()));
        assert!(is_made_anew(&SlotSeen { is_replaced: true, ..seen(1) }, &known()));
        assert!(is_made_anew(&seen(1), &SlotKnown { is_of_this_cluster: false, ..known() }));
        assert!(is_made_anew(&seen(1), &SlotKnown { is_trusted: false, ..known() }));
        assert!(is_made_anew(&seen(1), &SlotKnown { start_snapshot: None, ..known() }));
        assert!(!is_made_anew(&seen(1), &known()));
        let gone = SlotFound::of(None, Some(&known()));
        assert!(matches!(gone, SlotFound::Anew { drop: false, .. }));
    }

    #[test]
    fn what_others_have_is_left_alone() {
        let elsewhere = Some("shop".to_owned());
        let theirs = SlotSeen { elsewhere, is_active: true, ..seen(1) };
        assert_eq!(
            SlotFound::of(Some(&theirs), Some(&known())),
            SlotFound::Elsewhere("shop".into())
        );
        let read = SlotSeen { is_active: true, ..seen(1) };
        assert_eq!(SlotFound::of(Some(&read), Some(&known())), SlotFound::Busy);
        assert_eq!(SlotFound::of(Some(&seen(1)), None), SlotFound::NotOurs);
        let other = SlotSeen { is_pgoutput: false, ..seen(1) };
        assert_eq!(SlotFound::of(Some(&other), Some(&known())), SlotFound::NotOurs);
    }
}
