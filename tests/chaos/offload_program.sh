# A program of the campaign's engine: SECONDS fails|succeeds. Only the first submission of a call fails.
sleep "$1"
case "$DL_OFFLOAD" in
    *.[2-9]*) ;;
    *) [ "$2" = fails ] && exit 1 ;;
esac
printf '::result {"offload": "%s"}\n' "$DL_OFFLOAD"
