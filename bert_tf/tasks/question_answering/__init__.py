"""Question answering: SQuAD files, spans, answers, scores, the report and exports."""
