//! How many choices there are: each is a promise times all others.

use super::*;

/// Combinations of settings that may be used together, with `setup --partitioned` and without, at most.
const COMBINATIONS_MAX: usize = 480;

/// All combinations of choices that [`Config::validate`] has to decide about. Numbers and names are no
/// choices; a limit is there, or it is not.
fn combinations() -> Vec<Config> {
    let mut all = vec![config()];
    choose(&mut all, &[Mode::Fenced, Mode::Keyed, Mode::Poll], |it, mode| it.mode = mode);
    choose(&mut all, &[MarkBy::Row, MarkBy::Delete, MarkBy::Lean], |it, by| it.mark.by = by);
    choose(&mut all, &[OnPark::Skip, OnPark::BlockKey], |it, on_park| it.on_park = on_park);
    choose(&mut all, &[1, 2], |it, shards| it.shards = Shards::new(shards));
    choose(&mut all, &[None, Some(1 << 30)], |it, limit| it.wal.limit = limit);
    choose(&mut all, &[false, true], |it, messages| it.wal.messages = messages);
    choose(&mut all, &[None, Some(1 << 30)], |it, retain| it.rewind.retain = retain);
    let week = Some(Duration::from_hours(7 * 24));
    choose(&mut all, &[None, week], |it, published| it.retention.published = published);
    all
}

fn choose<T: Copy>(all: &mut Vec<Config>, choices: &[T], choice: impl Fn(&mut Config, T)) {
    let with = |config: &Config, value| {
        let mut config = config.clone();
        choice(&mut config, value);
        config
    };
    let each = |config: &Config| choices.iter().map(|it| with(config, *it)).collect::<Vec<_>>();
    *all = all.iter().flat_map(each).collect();
}

#[test]
fn few_combinations_of_settings_may_be_used_together() {
    let legal = combinations().iter().filter(|it| it.validate().is_ok()).count() * 2;
    assert!(
        legal <= COMBINATIONS_MAX,
        "{legal} combinations are legal, {COMBINATIONS_MAX} are allowed: refuse the new ones, or say \
         in the commit that raises the number what it pays for"
    );
}
